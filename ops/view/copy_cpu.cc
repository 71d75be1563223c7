// reshape_cpu_copy, transpose_cpu_copy, slice_cpu_copy, broadcast_cpu_copy: one copy between two
// strided tensors of one shape, bit for bit (a NaN keeps its payload).
//
// The shape is first reduced to as few axes as both sides' strides allow. Two of them make the
// plane that is cut into tiles, the rest count planes:
//
//   columns: the last axis, along which the output is contiguous
//   rows:    the axis along which the input's elements lie closest together, where that is another
//            one (a transpose); otherwise the last axis but one
//
// A transposing tile is kSide x kSide, so that every cache line it touches on either side is used
// up while it is in L1, and goes through registers in blocks; other tiles are runs of about kRun
// elements. Threads take contiguous ranges of tiles. Tiles do not overlap, so the result does not
// depend on the cut.
#include <algorithm>
#include <cstring>

#include "ops/base/kernel.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/view/view.h"

namespace me {
namespace {

constexpr int64_t kSide = 32;                  // two cache lines of fp32, one of fp16
constexpr int64_t kBlock = 8;                  // two SSE registers of fp32, one of fp16
constexpr int64_t kRun = 4096;                 // elements; dwarfs the arithmetic that finds a tile
constexpr int64_t kBytesPerThread = 64 << 10;  // below it, waking a thread costs more than copying

struct Axis {
  int64_t extent = 1;
  int64_t from = 0;  // strides
  int64_t to = 0;
};

struct Copy {
  Axis planes[kMaxRank];  // outermost first
  int plane_rank = 0;
  Axis rows;
  Axis columns;
  bool transposes = false;
  int64_t tile_rows = 1;
  int64_t tile_columns = 1;
  int64_t row_tiles = 0;
  int64_t column_tiles = 0;
  int64_t tiles = 0;
};

// Requires one shape on both sides, not empty.
Copy make_copy(const TensorDesc& from, const TensorDesc& to) {
  Axis axes[kMaxRank + 2];  // innermost first; two to spare, so that rows and columns exist
  int rank = 0;
  for (int i = to.shape.rank() - 1; i >= 0; --i) {
    const Axis axis{to.shape[i], from.strides[i], to.strides[i]};
    if (axis.extent == 1) continue;
    Axis* inner = rank == 0 ? nullptr : &axes[rank - 1];
    if (inner != nullptr && axis.from == inner->extent * inner->from &&
        axis.to == inner->extent * inner->to) {
      inner->extent *= axis.extent;
    } else {
      axes[rank++] = axis;
    }
  }

  Copy copy;
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

  copy.tile_columns = copy.transposes ? kSide : std::min(copy.columns.extent, kRun);
  copy.tile_rows = copy.transposes ? kSide : std::max<int64_t>(1, kRun / copy.tile_columns);
  copy.row_tiles = (copy.rows.extent + copy.tile_rows - 1) / copy.tile_rows;
  copy.column_tiles = (copy.columns.extent + copy.tile_columns - 1) / copy.tile_columns;
  copy.tiles = copy.row_tiles * copy.column_tiles;
  for (int i = 0; i < copy.plane_rank; ++i) copy.tiles *= copy.planes[i].extent;
  return copy;
}

// Storage belongs to floats and integers alike: elements move by memcpy, which compiles to one
// instruction.
template <class Bits>
Bits load(const char* data, int64_t index) {
  Bits bits;
  std::memcpy(&bits, data + index * int64_t{sizeof(Bits)}, sizeof(Bits));
  return bits;
}
template <class Bits>
void store(char* data, int64_t index, Bits bits) {
  std::memcpy(data + index * int64_t{sizeof(Bits)}, &bits, sizeof(Bits));
}

template <class Bits>
void copy_row(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(Bits));
  } else if (from_stride == 0 && to_stride == 1) {
    const Bits bits = load<Bits>(from, 0);
    for (int64_t i = 0; i < n; ++i) store(to, i, bits);
  } else {
    for (int64_t i = 0; i < n; ++i) store(to, i * to_stride, load<Bits>(from, i * from_stride));
  }
}

// Element (row, column) of a tile, on either side.
int64_t from_at(const Copy& copy, int64_t row, int64_t column) {
  return row * copy.rows.from + column * copy.columns.from;
}
int64_t to_at(const Copy& copy, int64_t row, int64_t column) {
  return row * copy.rows.to + column * copy.columns.to;
}

// kBlock x kBlock elements, contiguous along rows on the input's side and along columns on the
// output's: all loads and stores are of whole vectors, and the transposition is in registers.
template <class Bits>
void transpose_block(const char* from, int64_t from_stride, char* to, int64_t to_stride) {
  Bits in[kBlock][kBlock];
  Bits out[kBlock][kBlock];
  for (int64_t c = 0; c < kBlock; ++c) {
    std::memcpy(in[c], from + c * from_stride * int64_t{sizeof(Bits)}, sizeof(in[c]));
  }
  for (int64_t c = 0; c < kBlock; ++c) {
    for (int64_t r = 0; r < kBlock; ++r) out[r][c] = in[c][r];
  }
  for (int64_t r = 0; r < kBlock; ++r) {
    std::memcpy(to + r * to_stride * int64_t{sizeof(Bits)}, out[r], sizeof(out[r]));
  }
}

template <class Bits>
void transpose_tile(const Copy& copy, const char* from, char* to, int64_t rows, int64_t columns) {
  // The part of whole blocks, where both sides are contiguous.
  const bool blocks = copy.rows.from == 1 && copy.columns.to == 1;
  const int64_t block_rows = blocks ? rows - rows % kBlock : 0;
  const int64_t block_columns = blocks ? columns - columns % kBlock : 0;
  for (int64_t r = 0; r < block_rows; r += kBlock) {
    for (int64_t c = 0; c < block_columns; c += kBlock) {
      transpose_block<Bits>(from + from_at(copy, r, c) * int64_t{sizeof(Bits)}, copy.columns.from,
                            to + to_at(copy, r, c) * int64_t{sizeof(Bits)}, copy.rows.to);
    }
  }
  // The rest: to the right of the blocks, and below.
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < block_rows ? block_columns : 0; c < columns; ++c) {
      store(to, to_at(copy, r, c), load<Bits>(from, from_at(copy, r, c)));
    }
  }
}

template <class Bits>
void copy_tiles(const Copy& copy, const char* from, char* to, int64_t begin, int64_t end) {
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t column = tile % copy.column_tiles * copy.tile_columns;
    int64_t rest = tile / copy.column_tiles;
    const int64_t row = rest % copy.row_tiles * copy.tile_rows;
    rest /= copy.row_tiles;
    int64_t from_offset = row * copy.rows.from + column * copy.columns.from;
    int64_t to_offset = row * copy.rows.to + column * copy.columns.to;
    for (int i = copy.plane_rank - 1; i >= 0; --i) {
      const Axis& axis = copy.planes[i];
      from_offset += rest % axis.extent * axis.from;
      to_offset += rest % axis.extent * axis.to;
      rest /= axis.extent;
    }
    const int64_t rows = std::min(copy.tile_rows, copy.rows.extent - row);
    const int64_t columns = std::min(copy.tile_columns, copy.columns.extent - column);
    const char* tile_from = from + from_offset * int64_t{sizeof(Bits)};
    char* tile_to = to + to_offset * int64_t{sizeof(Bits)};
    if (copy.transposes) {
      transpose_tile<Bits>(copy, tile_from, tile_to, rows, columns);
      continue;
    }
    for (int64_t r = 0; r < rows; ++r) {
      copy_row<Bits>(tile_from + r * copy.rows.from * int64_t{sizeof(Bits)}, copy.columns.from,
                     tile_to + r * copy.rows.to * int64_t{sizeof(Bits)}, copy.columns.to, columns);
    }
  }
}

template <class Bits>
std::unique_ptr<PreparedOp> prepare_copy(const TensorDesc& from_desc, const TensorDesc& to_desc,
                                         const void* from, void* to, int threads) {
  const Copy copy = make_copy(from_desc, to_desc);
  threads = static_cast<int>(std::clamp<int64_t>(to_desc.bytes() / kBytesPerThread, 1, threads));
  return make_prepared([=](void*) {
    parallel_for(threads, copy.tiles, [&](int64_t begin, int64_t end, int) {
      copy_tiles<Bits>(copy, static_cast<const char*>(from), static_cast<char*>(to), begin, end);
    });
  });
}

// Neither side's strides express the other's shape (a strided output of a reshape).
template <class Bits>
std::unique_ptr<PreparedOp> prepare_elements(const TensorDesc& from_desc, const TensorDesc& to_desc,
                                             const void* from, void* to, int threads) {
  return make_prepared([=](void*) {
    parallel_for(threads, to_desc.count(), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        store(static_cast<char*>(to), offset_of(to_desc, i),
              load<Bits>(static_cast<const char*>(from), offset_of(from_desc, i)));
      }
    });
  });
}

template <class Bits>
std::unique_ptr<PreparedOp> prepare_as(const Problem& p, const Buffers& buffers) {
  const TensorDesc& x = p.inputs[0];
  const TensorDesc& y = p.outputs[0];
  const void* from = buffers.inputs[0];
  void* to = buffers.outputs[0];
  if (y.count() == 0) {
    return make_prepared([](void*) {});
  }
  if (const auto view = p.op->view(*p.attrs, x, y.shape)) {
    return prepare_copy<Bits>(view->desc, y, element(from, x.dtype, view->offset), to,
                              p.device.threads);
  }
  // Only a reshape comes here. Its dense output looks just as well through the input's shape.
  if (const auto view = reshape_view(y, x.shape)) {
    return prepare_copy<Bits>(x, view->desc, from, to, p.device.threads);
  }
  return prepare_elements<Bits>(x, y, from, to, p.device.threads);
}

Support supports(const Problem& p) {
  return Support::yes(p.op->work(p).bytes / 1e4, "the CPU's only copy");
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  return size_of(p.inputs[0].dtype) == 2 ? prepare_as<uint16_t>(p, buffers)
                                         : prepare_as<uint32_t>(p, buffers);
}

constexpr KernelEntry copy_kernel(std::string_view op, std::string_view name) {
  return {
      .op = op,
      .name = name,
      .backend = Backend::kCpu,
      .supports = supports,
      .prepare = prepare,
  };
}

}  // namespace

extern const KernelEntry reshape_cpu_copy;
extern const KernelEntry transpose_cpu_copy;
extern const KernelEntry slice_cpu_copy;
extern const KernelEntry broadcast_cpu_copy;
const KernelEntry reshape_cpu_copy = copy_kernel("reshape", "reshape_cpu_copy");
const KernelEntry transpose_cpu_copy = copy_kernel("transpose", "transpose_cpu_copy");
const KernelEntry slice_cpu_copy = copy_kernel("slice", "slice_cpu_copy");
const KernelEntry broadcast_cpu_copy = copy_kernel("broadcast", "broadcast_cpu_copy");

}  // namespace me
