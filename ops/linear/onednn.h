// oneDNN as this project uses it: fp32 products C = A·B (+ bias). onednn.cc is the only file that
// includes oneDNN's headers; it absorbs the differences between the library's versions 2 and 3.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "ops/base/status.h"

namespace me {

// A [m, k], B [k, n], C [m, n] row-major with a unit column stride, bias [n]; all fp32. Extents and
// strides are 1 to kMaxExtent; A and B each have stride 1 one way and one that spans that extent
// the other way. A matrix of a single row or column, C included, is dense and row-major: the
// matrix-vector kernels of oneDNN 3.7 (AVX-512) read and write as if it were.
struct ProductSpec {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t a_row = 0;  // strides
  int64_t a_column = 1;
  int64_t b_row = 0;
  int64_t b_column = 1;
  int64_t c_row = 0;
  bool bias = false;
  bool may_pack_b = false;  // B may be asked for in the library's own layout: see pack_b()
  int threads = 1;          // the result's bits depend on it

  // oneDNN's newer kernels count extents and byte strides in 32 bits.
  static constexpr int64_t kMaxExtent = INT32_MAX / 4;
};

// A prepared product. True fp32 (no bf16 or TF32 shortcuts, whatever the environment asks for).
class Product {
 public:
  static Result<std::unique_ptr<Product>> create(const ProductSpec& spec);
  ~Product();

  // Name of oneDNN's implementation.
  std::string_view implementation() const;
  int64_t scratchpad_bytes() const;

  // Bytes of B in the library's own layout, or 0 where it reads B as it lies.
  int64_t packed_b_bytes() const;
  // Writes them. Requires packed_b_bytes() > 0 and `packed` aligned to 64 bytes.
  Status pack_b(const float* b, void* packed);

  // Allocates nothing itself; oneDNN's GEMM takes small buffers of its own. `b` is packed where
  // packed_b_bytes() > 0. `scratchpad`: scratchpad_bytes() bytes, aligned to 64. Not for use by two
  // threads at a time.
  void run(const float* a, const void* b, const float* bias, float* c, void* scratchpad);

 private:
  struct Impl;
  explicit Product(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace me
