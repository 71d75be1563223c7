#include "engine/model/graph.h"

#include <fmt/format.h>

#include <algorithm>

namespace me {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

Error fault(const Graph& graph, std::string node, std::string field, std::string message) {
  Error error = invalid(std::move(message));
  error.file = graph.file;
  error.node = std::move(node);
  error.field = std::move(field);
  return error;
}

// Whether the extents that are known multiply to less than 2^60. One that is not known could still
// be 1 or 0, and is checked when it is.
bool fits(const Dims& shape) {
  Dims known = shape;
  for (int i = 0; i < known.rank(); ++i) {
    if (known[i] == kUnknownDim) known[i] = 1;
  }
  return checked_count(known).has_value();
}

std::string too_large(const TensorType& type) {
  return fmt::format("found {}, expected extents that multiply to less than 2^60", to_string(type));
}

std::string in_words(const TypeClaim& claim) {
  std::string out;
  if (claim.dtype) out += name_of(*claim.dtype);
  if (claim.dims.empty()) return out;
  out += '[';
  for (size_t i = 0; i < claim.dims.size(); ++i) {
    if (i > 0) out += ", ";
    const Dim& dim = claim.dims[i];
    out += dim.symbol.empty() ? std::to_string(dim.size) : dim.symbol;
  }
  return out + ']';
}

bool holds(const TypeClaim& claim, const TensorType& type, const Symbols& symbols) {
  if (claim.dtype && *claim.dtype != type.dtype) return false;
  if (claim.dims.empty()) return true;
  if (static_cast<int>(claim.dims.size()) != type.shape.rank()) return false;
  for (int i = 0; i < type.shape.rank(); ++i) {
    if (!dims_agree(resolve(claim.dims[at(i)], symbols), type.shape[i])) return false;
  }
  return true;
}

}  // namespace

int Graph::find_value(std::string_view wanted) const {
  const auto it = std::lower_bound(
      by_name.begin(), by_name.end(), wanted,
      [&](int value, std::string_view text) { return values[at(value)].name < text; });
  return it != by_name.end() && values[at(*it)].name == wanted ? *it : -1;
}

Result<std::vector<TensorType>> infer_types(const Graph& graph, const Symbols& symbols) {
  for (const auto& [symbol, size] : symbols) {
    if (size < 0) {
      return fault(graph, "", "symbol " + in_quotes(symbol),
                   fmt::format("found {}, expected 0 or more", size));
    }
  }

  std::vector<TensorType> types(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    if (value.kind == ValueKind::kIntermediate) continue;
    types[v].dtype = value.dtype;
    for (const Dim& dim : value.dims) types[v].shape.push_back(resolve(dim, symbols));
    if (!fits(types[v].shape)) {
      const auto input = std::find(graph.inputs.begin(), graph.inputs.end(), static_cast<int>(v));
      return fault(graph, value.name,
                   fmt::format("graph.inputs[{}].dims", input - graph.inputs.begin()),
                   too_large(types[v]));
    }
  }

  std::vector<TensorType> inputs;
  for (const Node& node : graph.nodes) {
    inputs.clear();
    for (int input : node.inputs) inputs.push_back(types[at(input)]);
    auto outputs = node.op->infer(*node.attrs, inputs, symbols);
    if (!outputs.ok()) {
      outputs.error().file = graph.file;
      outputs.error().node = node.name;
      return std::move(outputs.error());
    }
    if (outputs.value().size() != node.outputs.size()) {
      return fault(graph, node.name, "outputs",
                   fmt::format("found {} outputs, expected {}", node.outputs.size(),
                               outputs.value().size()));
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const TensorType& type = outputs.value()[i];
      if (!fits(type.shape)) {
        return fault(graph, node.name, fmt::format("outputs[{}]", i), too_large(type));
      }
      types[at(node.outputs[i])] = type;
    }
  }

  for (const TypeClaim& claim : graph.claims) {
    const TensorType& type = types[at(claim.value)];
    if (!holds(claim, type, symbols)) {
      return fault(graph, graph.values[at(claim.value)].name, claim.field,
                   fmt::format("found {}, expected {} as the model claims", to_string(type),
                               in_words(claim)));
    }
  }
  return types;
}

}  // namespace me
