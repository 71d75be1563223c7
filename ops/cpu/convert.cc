#include "ops/cpu/convert.h"

namespace me {

void widen(const void* from, DType dtype, int64_t stride, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = load_f32(from, i * stride, dtype);
}

void narrow(const float* from, int64_t n, void* to, DType dtype, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) store_f32(to, i * stride, dtype, from[i]);
}

}  // namespace me
