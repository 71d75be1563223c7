// Where each view lies inside its input.
#include "ops/view/view.h"

namespace me {
namespace {

// `input` under new shape and strides, from its element `offset` on.
ViewPlacement placed(const TensorDesc& input, const Dims& shape, const Dims& strides,
                     int64_t offset) {
  ViewPlacement view{input, offset};
  view.desc.shape = shape;
  view.desc.strides = strides;
  const int64_t bytes = offset * size_of(input.dtype) | input.alignment_bytes;
  view.desc.alignment_bytes = bytes & -bytes;  // the lowest bit of either
  return view;
}

}  // namespace

// Row-major order of the input is a run of blocks, each an arithmetic progression of offsets: axes
// whose strides fit together. An output axis may split a block but never straddle two.
std::optional<ViewPlacement> reshape_view(const TensorDesc& input, const Dims& output_shape) {
  if (input.count() == 0) return placed(input, output_shape, dense_strides(output_shape), 0);

  Dims extents;  // of the blocks, innermost first
  Dims steps;    // offset between neighbours in a block
  for (int i = input.shape.rank() - 1; i >= 0; --i) {
    if (input.shape[i] == 1) continue;
    if (extents.rank() > 0 && input.strides[i] == extents.back() * steps.back()) {
      extents.back() *= input.shape[i];
    } else {
      extents.push_back(input.shape[i]);
      steps.push_back(input.strides[i]);
    }
  }

  Dims strides = output_shape;
  int block = -1;
  int64_t left = 1;  // elements of the block that no axis has taken yet
  int64_t step = 1;  // offset between neighbours along the next axis
  for (int i = output_shape.rank() - 1; i >= 0; --i) {
    if (output_shape[i] == 1) {
      strides[i] = step;
      continue;
    }
    if (left == 1) {
      if (++block == extents.rank()) return std::nullopt;  // more elements than the input has
      left = extents[block];
      step = steps[block];
    }
    if (left % output_shape[i] != 0) return std::nullopt;
    strides[i] = step;
    left /= output_shape[i];
    step *= output_shape[i];
  }
  return placed(input, output_shape, strides, 0);
}

std::optional<ViewPlacement> view_of_reshape(const Attrs&, const TensorDesc& input,
                                             const Dims& output_shape) {
  return reshape_view(input, output_shape);
}

std::optional<ViewPlacement> view_of_transpose(const Attrs& attrs, const TensorDesc& input,
                                               const Dims& output_shape) {
  Dims strides;
  for (int64_t axis : attrs_as<TransposeAttrs>(attrs).permutation) {
    strides.push_back(input.strides[static_cast<int>(axis)]);
  }
  return placed(input, output_shape, strides, 0);
}

std::optional<ViewPlacement> view_of_slice(const Attrs& attrs, const TensorDesc& input,
                                           const Dims& output_shape) {
  const auto& slice = attrs_as<SliceAttrs>(attrs);
  const int axis = static_cast<int>(slice.axis < 0 ? slice.axis + input.shape.rank() : slice.axis);
  const int64_t start = slice.start < 0 ? slice.start + input.shape[axis] : slice.start;
  Dims strides = input.strides;
  // With fewer than two elements the stride does not count, and its product might overflow.
  if (output_shape[axis] >= 2) strides[axis] *= slice.step;
  // An empty slice may start past the end; its address must not.
  const int64_t offset = count(output_shape) == 0 ? 0 : start * input.strides[axis];
  return placed(input, output_shape, strides, offset);
}

std::optional<ViewPlacement> view_of_broadcast(const Attrs&, const TensorDesc& input,
                                               const Dims& output_shape) {
  const int added = output_shape.rank() - input.shape.rank();
  Dims strides = output_shape;
  for (int i = 0; i < output_shape.rank(); ++i) {
    const bool repeated = i < added || input.shape[i - added] != output_shape[i];
    strides[i] = repeated ? 0 : input.strides[i - added];
  }
  return placed(input, output_shape, strides, 0);
}

}  // namespace me
