// A strided tensor as rows along its last axis. Trivially copyable, so kernels take it by value.
#pragma once

#include "ops/base/tensor.h"

namespace me {

struct Rows {
  int64_t count = 1;  // product of all extents but the last
  int64_t length = 1;
  int64_t stride = 1;  // elements between neighbours in a row
  TensorDesc leading;  // the axes but the last, as few as their strides allow

  // Elements from the tensor's element 0 to the first one of a row.
  constexpr int64_t offset(int64_t row) const {
    if (leading.shape.rank() == 1) return row * leading.strides[0];  // spares the divisions
    return offset_of(leading, row);
  }
};

// Requires rank >= 1.
inline Rows rows_of(const TensorDesc& tensor) {
  Rows rows;
  rows.length = tensor.shape.back();
  rows.stride = tensor.strides.back();
  TensorDesc& leading = rows.leading;
  leading.dtype = tensor.dtype;
  for (int i = 0; i + 1 < tensor.shape.rank(); ++i) {
    const int64_t extent = tensor.shape[i];
    const int64_t stride = tensor.strides[i];
    if (extent == 1) continue;
    if (leading.shape.rank() > 0 && leading.strides.back() == extent * stride) {
      leading.shape.back() *= extent;  // the axis continues the one around it
      leading.strides.back() = stride;
    } else {
      leading.shape.push_back(extent);
      leading.strides.push_back(stride);
    }
  }
  rows.count = leading.count();
  return rows;
}

}  // namespace me
