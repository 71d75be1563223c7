// A product as cuBLASLt takes it, in words, and what it cannot take. Arithmetic only, so that a
// machine without the library or a GPU tests it.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ops/base/dtype.h"

namespace me {

// A column-major matrix, or a batch of them: element (i, j) of matrix b lies at
// i + j·ld + b·batch_stride.
struct LtMatrix {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t ld = 0;  // >= rows
  int64_t batch_stride = 0;
  int64_t alignment_bytes = 0;  // every matrix of the batch starts at a multiple of it
  // NOLINTNEXTLINE(modernize-use-nullptr): version 14 sees a 0 in every defaulted <=>
  auto operator<=>(const LtMatrix&) const = default;
};

// A matrix that the product reads as it lies or transposed.
struct LtOperand {
  LtMatrix matrix;
  bool transpose = false;
};

// A rows x columns matrix with these strides as an operand, or nothing where neither stride is 1 or
// the other one does not span that extent. The stride of an extent of 1 does not count. Extents are
// 1 or more.
std::optional<LtOperand> lt_operand(DType dtype, int64_t rows, int64_t columns, int64_t row_stride,
                                    int64_t column_stride);
// The same as a result, which cannot be transposed.
std::optional<LtMatrix> lt_result(DType dtype, int64_t rows, int64_t columns, int64_t row_stride,
                                  int64_t column_stride);

enum class LtEpilogue : uint8_t { kDefault, kRelu, kBias, kReluBias };
constexpr bool has_bias(LtEpilogue epilogue) { return epilogue >= LtEpilogue::kBias; }
std::string_view name_of(LtEpilogue epilogue);  // as the library spells it: "RELU_BIAS"

// D = act(alpha·op(A)·op(B) + bias), fp32 accumulators and alpha, bias along the rows of D: all
// that decides which algorithms there are.
struct LtProduct {
  int device = 0;
  int64_t batch = 1;
  LtMatrix a, b, d;
  bool transpose_a = false;
  bool transpose_b = false;
  LtEpilogue epilogue = LtEpilogue::kDefault;
  DType bias_dtype = DType::kF32;
  int64_t bias_alignment_bytes = 0;
  bool tf32 = false;  // fp32 factors are rounded to TF32
  // NOLINTNEXTLINE(modernize-use-nullptr): version 14 sees a 0 in every defaulted <=>
  auto operator<=>(const LtProduct&) const = default;
};

// What the library cannot take of it, or is not trusted with, found by arithmetic alone: a fault on
// the device would end the process's use of it.
std::optional<std::string> lt_refusal(const LtProduct& product);

}  // namespace me
