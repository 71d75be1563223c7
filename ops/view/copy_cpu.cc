// reshape_cpu_copy, transpose_cpu_copy, slice_cpu_copy, broadcast_cpu_copy: one copy between two
// strided tensors of one shape, bit for bit (a NaN keeps its payload).
//
// Tiles are those of ops/view/copy_plan.h. A transposing one goes through registers in blocks;
// every cache line that it touches on either side is used up while it is in L1. Threads take
// contiguous ranges of tiles.
#include <algorithm>
#include <cstring>

#include "ops/base/kernel.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/view/copy_plan.h"
#include "ops/view/view.h"

namespace me {
namespace {

constexpr int64_t kBlock = 8;                  // two SSE registers of fp32, one of fp16
constexpr int64_t kBytesPerThread = 64 << 10;  // below it, waking a thread costs more than copying

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
int64_t from_at(const CopyPlan& copy, int64_t row, int64_t column) {
  return row * copy.rows.from + column * copy.columns.from;
}
int64_t to_at(const CopyPlan& copy, int64_t row, int64_t column) {
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
void transpose_tile(const CopyPlan& copy, const char* from, char* to, int64_t rows,
                    int64_t columns) {
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
void copy_tiles(const CopyPlan& copy, const char* from, char* to, int64_t begin, int64_t end) {
  for (int64_t tile = begin; tile < end; ++tile) {
    const CopyTile at = copy.tile(tile);
    const char* tile_from = from + at.from * int64_t{sizeof(Bits)};
    char* tile_to = to + at.to * int64_t{sizeof(Bits)};
    if (copy.transposes) {
      transpose_tile<Bits>(copy, tile_from, tile_to, at.rows, at.columns);
      continue;
    }
    for (int64_t r = 0; r < at.rows; ++r) {
      copy_row<Bits>(tile_from + r * copy.rows.from * int64_t{sizeof(Bits)}, copy.columns.from,
                     tile_to + r * copy.rows.to * int64_t{sizeof(Bits)}, copy.columns.to,
                     at.columns);
    }
  }
}

template <class Bits>
std::unique_ptr<PreparedOp> prepare_copy(const TensorDesc& from_desc, const TensorDesc& to_desc,
                                         const void* from, void* to, int threads) {
  const CopyPlan copy = plan_copy(from_desc, to_desc);
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
