// NumPy's .npy format, versions 1.0 to 3.0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/base/status.h"
#include "ops/base/tensor.h"

namespace me {

// Types that a file may hold. Wider than DType: labels are integers.
enum class ArrayType : uint8_t { kF32, kF16, kBF16, kF64, kI64, kI32, kI8, kU8, kBool };

// An array read from a file: dense, row-major, in the machine's byte order.
struct Array {
  ArrayType type = ArrayType::kF32;
  Dims shape;
  std::vector<std::byte> bytes;

  // Element by row-major index as a double (int64 beyond 2^53 rounds).
  double get(int64_t index) const;
};

// "float32", NumPy's name.
std::string_view name_of(ArrayType type);
int64_t size_of(ArrayType type);

// The file is untrusted. Fortran order and big-endian files are converted. bfloat16, which NumPy
// lacks, is read from the void type `V2` that ml_dtypes writes. Errors name the file, what was
// found and what was expected; rank over kMaxRank and a size unlike the header's are refused.
Result<Array> read_npy(const std::string& path);

// Writes `tensor` dense. bf16 is written as float32, which is exact. The file is whole or
// untouched.
Status write_npy(const std::string& path, const TensorView& tensor);

}  // namespace me
