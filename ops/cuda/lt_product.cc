#include "ops/cuda/lt_product.h"

#include <fmt/format.h>

#include <limits>

namespace me {

std::optional<LtMatrix> lt_result(DType dtype, int64_t rows, int64_t columns, int64_t row_stride,
                                  int64_t column_stride) {
  const int64_t ld = columns == 1 ? rows : column_stride;
  if ((rows != 1 && row_stride != 1) || ld < rows) return std::nullopt;
  return LtMatrix{.dtype = dtype, .rows = rows, .columns = columns, .ld = ld};
}

std::optional<LtOperand> lt_operand(DType dtype, int64_t rows, int64_t columns, int64_t row_stride,
                                    int64_t column_stride) {
  const auto as_it_lies = lt_result(dtype, rows, columns, row_stride, column_stride);
  const auto transposed = lt_result(dtype, columns, rows, column_stride, row_stride);
  // A single row is better read as a column, where it is contiguous.
  if (transposed && (!as_it_lies || rows == 1)) return LtOperand{*transposed, true};
  if (as_it_lies) return LtOperand{*as_it_lies, false};
  return std::nullopt;
}

std::string_view name_of(LtEpilogue epilogue) {
  switch (epilogue) {
    case LtEpilogue::kDefault:
      return "DEFAULT";
    case LtEpilogue::kRelu:
      return "RELU";
    case LtEpilogue::kBias:
      return "BIAS";
    case LtEpilogue::kReluBias:
      return "RELU_BIAS";
  }
  return "?";
}

std::optional<std::string> lt_refusal(const LtProduct& p) {
  constexpr int64_t kMostExtent = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMostBatch = 65535;  // some algorithms have the batch as an axis of their grid
  constexpr int64_t kBiasAlignment = 16;
  for (const LtMatrix* m : {&p.a, &p.b, &p.d}) {
    if (m->rows < 1 || m->columns < 1) {
      return fmt::format("found a matrix of {} x {}, expected no empty one", m->rows, m->columns);
    }
    for (const int64_t extent : {m->rows, m->columns, m->ld}) {
      if (extent > kMostExtent) {
        return fmt::format("found an extent or leading dimension of {}, expected at most {}",
                           extent, kMostExtent);
      }
    }
    if (m->alignment_bytes < size_of(m->dtype)) {
      return fmt::format("found {} elements at multiples of {} bytes, expected {}",
                         name_of(m->dtype), m->alignment_bytes, size_of(m->dtype));
    }
  }
  if (p.batch > kMostBatch) {
    return fmt::format("found a batch of {} products, expected at most {}", p.batch, kMostBatch);
  }
  if (has_bias(p.epilogue)) {
    // No preference tells the heuristics of it, and an algorithm may load 16 bytes at a time.
    if (p.bias_alignment_bytes < kBiasAlignment) {
      return fmt::format("found a bias aligned to {} bytes, expected {}", p.bias_alignment_bytes,
                         kBiasAlignment);
    }
    // Were a narrower bias taken for one of D's type, as it is by default, it would be read past
    // its end. A wider one is the heuristics' to refuse.
    if (size_of(p.bias_dtype) < size_of(p.d.dtype)) {
      return fmt::format("found a {} bias for a {} result, expected one type",
                         name_of(p.bias_dtype), name_of(p.d.dtype));
    }
  }
  return std::nullopt;
}

}  // namespace me
