// Y = act(X·W + b). X [.., K] with leading dimensions that flatten to M, W [K, N] or [N, K], b [N],
// Y [.., N].
#pragma once

#include <optional>

#include "ops/base/op.h"

namespace me {

enum class WeightLayout : uint8_t { kKN, kNK };
enum class Activation : uint8_t { kNone, kRelu };

struct LinearAttrs : Attrs {
  WeightLayout weight_layout = WeightLayout::kKN;
  Activation activation = Activation::kNone;
  std::optional<DType> output_dtype;  // nothing: the type of x
  bool allow_tf32 = false;            // fp32 factors may be rounded to TF32
};

extern const OpDef kLinearOp;

struct LinearSizes {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};
LinearSizes linear_sizes(const Problem& problem);

// The weight's strides, seen as [K, N] whatever its layout.
struct WeightStrides {
  int64_t k = 0;
  int64_t n = 0;
};
WeightStrides weight_strides(const Problem& problem);

// Whether the product may be one of factors rounded to TF32.
inline bool may_use_tf32(const Problem& problem) {
  return problem.inputs[0].dtype == DType::kF32 && attrs_as<LinearAttrs>(*problem.attrs).allow_tf32;
}

inline bool has_bias(const Problem& problem) { return problem.inputs.size() == 3; }

}  // namespace me
