// A strided tensor as rows along its last axis.
#pragma once

#include "ops/base/tensor.h"

namespace me {

struct Rows {
  int64_t count = 1;  // product of all extents but the last
  int64_t length = 1;
  int64_t stride = 1;  // elements between neighbours in a row
  TensorDesc leading;  // the tensor without its last axis

  // Elements from the tensor's element 0 to the first one of a row.
  int64_t offset(int64_t row) const { return offset_of(leading, row); }
};

// Requires rank >= 1.
inline Rows rows_of(const TensorDesc& tensor) {
  Rows rows;
  rows.length = tensor.shape.back();
  rows.stride = tensor.strides.back();
  rows.leading.dtype = tensor.dtype;
  for (int i = 0; i + 1 < tensor.shape.rank(); ++i) {
    rows.leading.shape.push_back(tensor.shape[i]);
    rows.leading.strides.push_back(tensor.strides[i]);
  }
  rows.count = rows.leading.count();
  return rows;
}

}  // namespace me
