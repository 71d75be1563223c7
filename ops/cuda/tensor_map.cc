#include "ops/cuda/tensor_map.h"

#include <algorithm>

#include "ops/cuda/error.h"

namespace me {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver, so that the program also starts where there is none.
Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    ME_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                   cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess) ME_CUDA_CHECK(cudaErrorSymbolNotFound);
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kBF16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kF32:
      break;
  }
  return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

}  // namespace

CUtensorMap make_tensor_map(const TensorMapSpec& spec) {
  const int64_t item = size_of(spec.dtype);
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(spec.columns),
                               static_cast<cuuint64_t>(spec.rows)};
  // The stride of a single row is never used, but has to be a legal one.
  const int64_t stride =
      (spec.rows > 1 ? spec.row_stride * item : spec.columns * item + 15) / 16 * 16;
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(kTensorMapLine / item),
                             static_cast<cuuint32_t>(spec.box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map{};
  const CUresult result =
      encoder()(&map, type_of(spec.dtype), 2, const_cast<void*>(spec.data), sizes, strides, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) ME_CUDA_CHECK(cudaErrorInvalidValue);
  return map;
}

}  // namespace me
