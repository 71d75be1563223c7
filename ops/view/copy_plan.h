// How a copy between two strided tensors of one shape is cut into tiles, on host and device.
//
// The shape is first reduced to as few axes as both sides' strides allow. Two of them make the
// plane that is cut into tiles, the rest count planes:
//
//   columns: the last axis, along which the output is contiguous
//   rows:    the axis along which the input's elements lie closest together, where that is another
//            one (a transpose); otherwise the last axis but one
//
// A transposing tile is kCopySide x kCopySide, other tiles are runs of about kCopyRun elements.
// Tiles do not overlap, so the result does not depend on who copies which.
#pragma once

#include "ops/base/host_device.h"
#include "ops/base/tensor.h"

namespace me {

constexpr int64_t kCopySide = 32;   // two CPU cache lines of fp32, one of fp16; a warp
constexpr int64_t kCopyRun = 4096;  // elements; dwarfs the arithmetic that finds a tile

struct CopyAxis {
  int64_t extent = 1;
  int64_t from = 0;  // strides
  int64_t to = 0;
};

struct CopyTile {
  int64_t from = 0;  // offsets of its first element
  int64_t to = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};

// Trivially copyable, so kernels take it by value.
struct CopyPlan {
  CopyAxis planes[kMaxRank];  // outermost first
  int plane_rank = 0;
  CopyAxis rows;
  CopyAxis columns;
  bool transposes = false;
  int64_t tile_rows = 1;
  int64_t tile_columns = 1;
  int64_t row_tiles = 0;
  int64_t column_tiles = 0;
  int64_t tiles = 0;

  // Tile number `index`, 0 <= index < tiles.
  ME_HD constexpr CopyTile tile(int64_t index) const {
    const int64_t column = index % column_tiles * tile_columns;
    int64_t rest = index / column_tiles;
    const int64_t row = rest % row_tiles * tile_rows;
    rest /= row_tiles;
    CopyTile at;
    at.from = row * rows.from + column * columns.from;
    at.to = row * rows.to + column * columns.to;
    for (int i = plane_rank - 1; i >= 0; --i) {
      at.from += rest % planes[i].extent * planes[i].from;
      at.to += rest % planes[i].extent * planes[i].to;
      rest /= planes[i].extent;
    }
    at.rows = rows.extent - row < tile_rows ? rows.extent - row : tile_rows;
    at.columns = columns.extent - column < tile_columns ? columns.extent - column : tile_columns;
    return at;
  }
};

// Requires one shape on both sides, not empty.
CopyPlan plan_copy(const TensorDesc& from, const TensorDesc& to);

// The same copy in units of `wide` elements, where both sides are contiguous along the columns and
// everything divides: all strides and the columns' extent. False where it does not.
bool widen_copy(CopyPlan& copy, int64_t wide);

}  // namespace me
