// Elements on the device: the CUDA type of each DType, conversions, and 16-byte vectors of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "ops/base/dtype.h"

namespace me {

template <DType kType>
using CudaElement =
    std::conditional_t<kType == DType::kF32, float,
                       std::conditional_t<kType == DType::kF16, __half, __nv_bfloat16>>;

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(__half x) { return __half2float(x); }
__device__ inline float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounds once, to nearest even; subnormals and infinities are kept, NaN stays NaN.
template <class T>
__device__ inline T from_f32(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// kCount elements that move as one access.
template <class T, int kCount = 16 / static_cast<int>(sizeof(T))>
struct alignas(sizeof(T) * kCount) Vector {
  static constexpr int kSize = kCount;
  T at[kCount];
};

// f(std::integral_constant<DType, dtype>()), so that a run-time type picks an instantiation.
template <class F>
decltype(auto) with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF16:
      return f(std::integral_constant<DType, DType::kF16>());
    case DType::kBF16:
      return f(std::integral_constant<DType, DType::kBF16>());
    case DType::kF32:
      break;
  }
  return f(std::integral_constant<DType, DType::kF32>());
}

}  // namespace me
