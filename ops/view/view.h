// Views: reshape, transpose, slice and broadcast. They change shape and strides and move nothing;
// the copy kernels (copy_cpu.cc) are for the reshape that strides cannot express and for results
// that need memory of their own.
#pragma once

#include <optional>
#include <vector>

#include "ops/base/op.h"

namespace me {

struct ReshapeAttrs : Attrs {
  std::vector<Dim> dims;  // 1 to kMaxRank of them
  int inferred = -1;      // the index of the dim that is what is left; -1 where all are given
};

struct TransposeAttrs : Attrs {
  std::vector<int64_t> permutation;  // output axis i is input axis permutation[i]
};

struct SliceAttrs : Attrs {
  int64_t axis = 0;  // negative counts from the end, as in start and end
  int64_t start = 0;
  std::optional<int64_t> end;  // exclusive; nothing: the extent
  int64_t step = 1;
};

struct BroadcastAttrs : Attrs {
  std::vector<Dim> dims;  // 1 to kMaxRank of them, aligned with the input at the last axis
};

extern const OpDef kReshapeOp;
extern const OpDef kTransposeOp;
extern const OpDef kSliceOp;
extern const OpDef kBroadcastOp;

// `input` under a new shape with as many elements, or nothing where strides cannot express that.
// Complete: where it answers nothing, no strides give the row-major order of `input`.
std::optional<ViewPlacement> reshape_view(const TensorDesc& input, const Dims& output_shape);

// OpDef::view of each op.
std::optional<ViewPlacement> view_of_reshape(const Attrs& attrs, const TensorDesc& input,
                                             const Dims& output_shape);
std::optional<ViewPlacement> view_of_transpose(const Attrs& attrs, const TensorDesc& input,
                                               const Dims& output_shape);
std::optional<ViewPlacement> view_of_slice(const Attrs& attrs, const TensorDesc& input,
                                           const Dims& output_shape);
std::optional<ViewPlacement> view_of_broadcast(const Attrs& attrs, const TensorDesc& input,
                                               const Dims& output_shape);

// OpDef::oracle of all four.
std::vector<OracleOutput> view_oracle(const Problem& problem, std::span<const F64Tensor> inputs);

}  // namespace me
