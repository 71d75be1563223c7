// What an op is: its attributes, shape inference, cost and meaning. One OpDef per op, in the op's
// own folder; ops/registry.cc lists them. Adding an op adds a message to proto/model.proto whose
// field name in Node.op equals OpDef::name; the loader needs no change.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/base/status.h"
#include "ops/base/tensor.h"

namespace me {

// A dimension as a model writes it: a number (symbol empty), or a symbol bound when planning.
struct Dim {
  int64_t size = kUnknownDim;
  std::string symbol = {};
};

// Values of symbols; a symbol that is absent is unknown.
using Symbols = std::map<std::string, int64_t, std::less<>>;

// The value of `dim` under `symbols`, or kUnknownDim.
inline int64_t resolve(const Dim& dim, const Symbols& symbols) {
  if (dim.symbol.empty()) return dim.size;
  const auto it = symbols.find(dim.symbol);
  return it == symbols.end() ? kUnknownDim : it->second;
}

// The fields of an op's message that the model sets, by field name. Enum values come as their
// names.
using AttrValue =
    std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<Dim>>;
using AttrMap = std::map<std::string, AttrValue, std::less<>>;

// The value of field `name` as a T, or nothing when the model leaves it out. The schema fixes the
// type of each field, so a wrong T is a mistake in the program, not in the model.
template <class T>
std::optional<T> find_attr(const AttrMap& attrs, std::string_view name) {
  const auto it = attrs.find(name);
  if (it == attrs.end()) return std::nullopt;
  return std::get<T>(it->second);
}

// An op's attributes after parsing. Each op derives its own struct.
struct Attrs {
  virtual ~Attrs() = default;
};

struct OpDef;

// The machine that a plan is made for.
enum class Backend : uint8_t { kCpu, kCuda };

constexpr std::string_view name_of(Backend backend) {
  return backend == Backend::kCpu ? "cpu" : "cuda";
}

struct DeviceInfo {
  Backend backend = Backend::kCpu;
  int threads = 1;  // worker threads that a CPU kernel may use, the calling one included

  // Of a CUDA device; ops/cuda/device.h fills them in.
  std::string name = {};
  int index = 0;
  int compute_capability = 0;  // 10·major + minor: 90 is 9.0
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes = 0;  // the most that one block may ask for
};

// "cpu, 2 threads" or "cuda:0, NVIDIA H200, 9.0, 132 multiprocessors"
std::string to_string(const DeviceInfo& device);

// One node with concrete shapes: all that a kernel needs to say whether it fits and what it costs.
struct Problem {
  const OpDef* op = nullptr;
  const Attrs* attrs = nullptr;
  std::vector<TensorDesc> inputs;
  std::vector<TensorDesc> outputs;  // dense unless a test says otherwise
  DeviceInfo device;
  // The name of one of the kernel's configurations (KernelEntry::configs); empty: the kernel's own
  // choice.
  std::string config = {};
};

// The attributes of a problem, or of a node, whose op is known.
template <class T>
const T& attrs_as(const Attrs& attrs) {
  return static_cast<const T&>(attrs);
}

struct Work {
  double flops = 0;  // multiply and add count as two; exp, max and divide as one each
  double bytes = 0;  // compulsory traffic: each input and output element once
};

// A dense row-major FP64 tensor.
struct F64Tensor {
  Dims shape;
  std::vector<double> data;
};

// What an output must be. A kernel passes where |got - value| <= bound + the rounding of the output
// type. The bound covers fp32 accumulation in any order, by the probabilistic rounding analysis of
// Higham and Mary (2019): n additions err by at most kLambda·sqrt(n)·u·Σ|terms|.
struct OracleOutput {
  F64Tensor value;
  std::vector<double> bound;  // one per element, for the value before rounding to the output type
};

constexpr double kLambda = 6;  // fails with probability below 2·exp(-kLambda²/2), 3e-8 per element

// kLambda·sqrt(n)·u, or the worst case n·u where that is smaller; u = 2^-24.
double accumulation_error(double n);

// Where a view lies inside its input.
struct ViewPlacement {
  TensorDesc desc;
  int64_t offset = 0;  // elements from the input's element 0
};

struct OpDef {
  std::string_view name;  // field name in Node.op
  int min_inputs = 1;
  int max_inputs = 1;
  std::string_view input_names = {};  // for messages: "x, weight, bias"

  // Checks the attributes by themselves. Errors name the field ("linear.activation").
  Result<std::unique_ptr<Attrs>> (*parse)(const AttrMap& fields) = nullptr;

  // Output types from input types. A check that meets an unknown dimension passes; a dimension that
  // cannot be known yet is kUnknownDim. Errors say found and expected and set `field` to the input
  // or attribute to blame.
  Result<std::vector<TensorType>> (*infer)(const Attrs& attrs, std::span<const TensorType> inputs,
                                           const Symbols& symbols) = nullptr;

  Work (*work)(const Problem& problem) = nullptr;

  // Terms of the longest fp32 sum that an output element comes from; 0 where nothing is summed.
  int64_t (*sum_length)(const Problem& problem) = nullptr;

  // The op's definition in FP64. `inputs` are dense; one result per output.
  std::vector<OracleOutput> (*oracle)(const Problem& problem,
                                      std::span<const F64Tensor> inputs) = nullptr;

  // For views only: the output as a view of input 0, or nothing where that takes a copy.
  std::optional<ViewPlacement> (*view)(const Attrs& attrs, const TensorDesc& input,
                                       const Dims& output_shape) = nullptr;
};

// True where the dimensions agree or one of them is unknown.
constexpr bool dims_agree(int64_t a, int64_t b) {
  return a == kUnknownDim || b == kUnknownDim || a == b;
}

// Whichever of two agreeing dimensions is known.
constexpr int64_t known_dim(int64_t a, int64_t b) { return a == kUnknownDim ? b : a; }

}  // namespace me
