// Rows between their storage type and fp32. The CPU kernels compute in fp32 and meet other types
// and strides only here, at the edges.
#pragma once

#include <cstdint>

#include "ops/base/dtype.h"

namespace me {

// to[i] = from[i·stride] for i < n; exact. `from` is an array of `dtype`, stride >= 0.
void widen(const void* from, DType dtype, int64_t stride, int64_t n, float* to);

// to[i·stride] = from[i] for i < n, rounded once to nearest even. `to` is an array of `dtype`.
void narrow(const float* from, int64_t n, void* to, DType dtype, int64_t stride);

// Element `index` of an array of `dtype`.
inline const void* element(const void* data, DType dtype, int64_t index) {
  return static_cast<const char*>(data) + index * size_of(dtype);
}
inline void* element(void* data, DType dtype, int64_t index) {
  return static_cast<char*>(data) + index * size_of(dtype);
}

}  // namespace me
