// Blocks of rows as dense fp32, for kernels whose input may be transposed. Neighbouring rows of a
// transposed matrix lie side by side in memory, so a row alone uses one element of each cache line
// that it touches; as many rows together as a line has elements use all of it.
#pragma once

#include <algorithm>

#include "ops/base/rows.h"
#include "ops/cpu/convert.h"

namespace me {

constexpr int64_t kMostPanelRows = 32;

// The elements of a 64-byte cache line.
constexpr int64_t panel_rows(DType dtype) { return 64 / size_of(dtype); }

// Floats from one buffered row of `columns` to the next. The line between keeps a column, which is
// written at once, out of a single set of the cache where columns is a power of two.
constexpr int64_t panel_pitch(int64_t columns) { return columns + 16; }

// True where rows [row, row + count) start at consecutive elements.
inline bool rows_adjacent(const Rows& rows, int64_t row, int64_t count) {
  const int64_t first = rows.offset(row);
  for (int64_t r = 1; r < count; ++r) {
    if (rows.offset(row + r) != first + r) return false;
  }
  return true;
}

// to[r·pitch + j] = element begin + j of row `row` + r, for j < columns and r < count <=
// kMostPanelRows.
inline void load_panel(const TensorView& tensor, const Rows& rows, int64_t row, int64_t count,
                       int64_t begin, int64_t columns, float* to, int64_t pitch) {
  const DType dtype = tensor.dtype;
  if (rows.stride == 1 || count == 1 || !rows_adjacent(rows, row, count)) {
    for (int64_t r = 0; r < count; ++r) {
      const int64_t at = rows.offset(row + r) + begin * rows.stride;
      widen(element(tensor.data, dtype, at), dtype, rows.stride, columns, to + r * pitch);
    }
    return;
  }
  // Columns lie too far apart for the hardware to fetch ahead. A few suffice; with more, columns a
  // power of two apart push each other out of the cache.
  constexpr int64_t kAhead = 6;
  const int64_t first = rows.offset(row) + begin * rows.stride;
  for (int64_t j = 0; j < columns; ++j) {
    const void* from = element(tensor.data, dtype, first + j * rows.stride);
    __builtin_prefetch(
        element(tensor.data, dtype, first + std::min(j + kAhead, columns - 1) * rows.stride));
    float widened[kMostPanelRows];
    const float* column = static_cast<const float*>(from);
    if (dtype != DType::kF32) {
      widen(from, dtype, 1, count, widened);
      column = widened;
    }
    for (int64_t r = 0; r < count; ++r) to[r * pitch + j] = column[r];
  }
}

}  // namespace me
