#include "ops/view/copy_plan.h"

#include <algorithm>

namespace me {
namespace {

void cut_into_tiles(CopyPlan& copy) {
  copy.tile_columns = copy.transposes ? kCopySide : std::min(copy.columns.extent, kCopyRun);
  copy.tile_rows = copy.transposes ? kCopySide : std::max<int64_t>(1, kCopyRun / copy.tile_columns);
  copy.row_tiles = (copy.rows.extent + copy.tile_rows - 1) / copy.tile_rows;
  copy.column_tiles = (copy.columns.extent + copy.tile_columns - 1) / copy.tile_columns;
  copy.tiles = copy.row_tiles * copy.column_tiles;
  for (int i = 0; i < copy.plane_rank; ++i) copy.tiles *= copy.planes[i].extent;
}

}  // namespace

CopyPlan plan_copy(const TensorDesc& from, const TensorDesc& to) {
  CopyAxis axes[kMaxRank + 2];  // innermost first; two to spare, so that rows and columns exist
  int rank = 0;
  for (int i = to.shape.rank() - 1; i >= 0; --i) {
    const CopyAxis axis{to.shape[i], from.strides[i], to.strides[i]};
    if (axis.extent == 1) continue;
    CopyAxis* inner = rank == 0 ? nullptr : &axes[rank - 1];
    if (inner != nullptr && axis.from == inner->extent * inner->from &&
        axis.to == inner->extent * inner->to) {
      inner->extent *= axis.extent;
    } else {
      axes[rank++] = axis;
    }
  }

  CopyPlan copy;
  copy.columns = axes[0];
  int row_axis = 1;
  for (int i = 1; i < rank; ++i) {
    const int64_t nearest = copy.transposes ? axes[row_axis].from : copy.columns.from;
    if (axes[i].from > 0 && axes[i].from < nearest) {
      copy.transposes = true;
      row_axis = i;
    }
  }
  copy.rows = axes[row_axis];
  for (int i = rank - 1; i >= 1; --i) {
    if (i != row_axis) copy.planes[copy.plane_rank++] = axes[i];
  }

  cut_into_tiles(copy);
  return copy;
}

bool widen_copy(CopyPlan& copy, int64_t wide) {
  if (copy.columns.from != 1 || copy.columns.to != 1) return false;
  if (copy.columns.extent % wide != 0) return false;
  CopyPlan wider = copy;
  wider.columns.extent /= wide;
  const auto narrow = [wide](CopyAxis& axis) {
    const bool divides = axis.from % wide == 0 && axis.to % wide == 0;
    axis.from /= wide;
    axis.to /= wide;
    return divides || axis.extent == 1;
  };
  if (!narrow(wider.rows)) return false;
  for (int i = 0; i < wider.plane_rank; ++i) {
    if (!narrow(wider.planes[i])) return false;
  }
  cut_into_tiles(wider);
  copy = wider;
  return true;
}

}  // namespace me
