// Tensor maps: how the bulk tensor copy engine of compute capability 9.0 sees a matrix.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/base/tensor.h"

namespace me {

// A matrix whose rows are contiguous. Boxes of box_rows x box_columns; a box's row is 128 bytes,
// swizzled in shared memory.
struct TensorMapSpec {
  const void* data = nullptr;  // a multiple of 16 bytes
  DType dtype = DType::kF32;
  int64_t rows = 1;  // 1 to 2^32, as are the columns
  int64_t columns = 1;
  int64_t row_stride = 0;  // elements; a multiple of 16 bytes, below 2^40 bytes
  int box_rows = 1;        // at most 256
};

constexpr int64_t kTensorMapLine = 128;  // bytes

// Throws CudaError where the driver has no tensor maps or refuses this one.
CUtensorMap make_tensor_map(const TensorMapSpec& spec);

}  // namespace me
