// A model after validation: values and nodes by index, in topological order, immutable.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/base/op.h"

namespace me {

enum class ValueKind : uint8_t { kInput, kWeight, kIntermediate };

struct Value {
  std::string name;
  ValueKind kind = ValueKind::kIntermediate;
  DType dtype = DType::kF32;
  std::vector<Dim> dims;  // inputs and weights only; other shapes are inferred
  int producer = -1;      // index of the node that makes it, -1 for inputs and weights
  // Weights only: dense row-major elements, alive as long as the graph. Aligned to the element at
  // least.
  std::span<const std::byte> data;
};

struct Node {
  std::string name;
  const OpDef* op = nullptr;
  AttrMap fields;                      // as the model has them, for people
  std::shared_ptr<const Attrs> attrs;  // parsed
  std::vector<int> inputs;             // indices of values
  std::vector<int> outputs;
};

// A claim of the model about a value's type, checked again when the shapes are known.
struct TypeClaim {
  int value = -1;
  std::optional<DType> dtype;  // nothing: not claimed
  std::vector<Dim> dims;       // empty: not claimed
  std::string field;           // where the model makes it: "graph.outputs[0]"
};

// What keeps the weights' bytes alive: mapped files and inline tensors.
class WeightStorage;

struct Graph {
  std::string file;  // path the model came from, for messages
  std::string name;
  std::string doc;
  std::vector<Value> values;
  std::vector<Node> nodes;  // each after the producers of its inputs
  std::vector<int> inputs;  // indices of values, in the model's order
  std::vector<int> outputs;
  std::vector<TypeClaim> claims;
  std::vector<std::string> symbols;  // every symbol used, sorted
  std::vector<int> by_name;          // indices of all values, sorted by name
  std::shared_ptr<const WeightStorage> storage;

  // Index of the value called `name`, or -1.
  int find_value(std::string_view name) const;
};

// Types of all values under `symbols`, by index: every op's inference in order. Dimensions that the
// symbols do not settle are kUnknownDim. The errors name file, node and field. Also checks that no
// symbol is negative, the claims, that each op has as many outputs as it makes, and that the known
// extents of every tensor multiply to less than 2^60.
Result<std::vector<TensorType>> infer_types(const Graph& graph, const Symbols& symbols);

}  // namespace me
