// Blocks of rows as dense fp32, for kernels whose input may be transposed. Neighbouring rows of a
// transposed matrix lie side by side in memory, so a row alone uses one element of each cache line
// that it touches; kPanelRows rows together use all of it.
#pragma once

#include <algorithm>

#include "ops/cpu/convert.h"
#include "ops/cpu/rows.h"

namespace me {

constexpr int64_t kPanelRows = 16;  // one 64-byte line of fp32, half a line of the 16-bit types

// True where rows [row, row + count) start at consecutive elements.
inline bool rows_adjacent(const Rows& rows, int64_t row, int64_t count) {
  const int64_t first = rows.offset(row);
  for (int64_t r = 1; r < count; ++r) {
    if (rows.offset(row + r) != first + r) return false;
  }
  return true;
}

// to[r·to_stride + j] = element j of [begin, begin + columns) in row `row` + r, for r < count <=
// kPanelRows.
inline void load_panel(const TensorView& tensor, const Rows& rows, int64_t row, int64_t count,
                       int64_t begin, int64_t columns, float* to, int64_t to_stride) {
  const DType dtype = tensor.dtype;
  if (rows.stride == 1 || count == 1 || !rows_adjacent(rows, row, count)) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t at = rows.offset(row + r) + begin * rows.stride;
      widen(element(tensor.data, dtype, at), dtype, rows.stride, columns, to + r * to_stride);
    }
    return;
  }
  const int64_t first = rows.offset(row) + begin * rows.stride;
  for (int64_t j = 0; j < columns; ++j) {
    float column[kPanelRows];
    widen(element(tensor.data, dtype, first + j * rows.stride), dtype, 1, count, column);
    for (int64_t r = 0; r < count; ++r) to[r * to_stride + j] = column[r];
  }
}

}  // namespace me
