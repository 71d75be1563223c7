// reshape_cuda_copy, transpose_cuda_copy, slice_cuda_copy, broadcast_cuda_copy: one copy between
// two strided tensors of one shape, bit for bit (a NaN keeps its payload).
//
// Tiles are those of ops/view/copy_plan.h, one block of 256 threads to a tile at a time. Where both
// sides are contiguous and aligned an element is 16 bytes of them. A transposing tile goes through
// shared memory, so that both sides are read and written along their contiguous axis:
//
//   input, contiguous along rows        tile [32][33]          output, contiguous along columns
//   warp w: columns w, w + 8, ..   ──►  banks differ by 1  ──►  warp w: rows w, w + 8, ..
#include <algorithm>

#include "ops/base/kernel.h"
#include "ops/cuda/launch.h"
#include "ops/view/copy_plan.h"
#include "ops/view/view.h"

namespace me {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
static_assert(kCopySide == 32);

template <class Bits>
__global__ void copy_runs(const Bits* from, Bits* to, CopyPlan copy) {
  for (int64_t index = blockIdx.x; index < copy.tiles; index += gridDim.x) {
    const CopyTile tile = copy.tile(index);
    if (tile.rows == 1) {
      for (int64_t c = threadIdx.x; c < tile.columns; c += kThreads) {
        to[tile.to + c * copy.columns.to] = from[tile.from + c * copy.columns.from];
      }
      continue;
    }
    const auto columns = static_cast<int>(tile.columns);  // of kCopyRun elements at most
    const int count = static_cast<int>(tile.rows) * columns;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      const int row = i / columns;
      const int column = i % columns;
      to[tile.to + row * copy.rows.to + column * copy.columns.to] =
          from[tile.from + row * copy.rows.from + column * copy.columns.from];
    }
  }
}

template <class Bits>
__global__ void copy_transposing(const Bits* from, Bits* to, CopyPlan copy) {
  __shared__ Bits staged[kCopySide][kCopySide + 1];  // [row][column]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int64_t index = blockIdx.x; index < copy.tiles; index += gridDim.x) {
    const CopyTile tile = copy.tile(index);
    for (int c = warp; c < tile.columns; c += kWarps) {
      if (lane < tile.rows) {
        staged[lane][c] = from[tile.from + lane * copy.rows.from + c * copy.columns.from];
      }
    }
    __syncthreads();  // the tile is whole
    for (int r = warp; r < tile.rows; r += kWarps) {
      if (lane < tile.columns) {
        to[tile.to + r * copy.rows.to + lane * copy.columns.to] = staged[r][lane];
      }
    }
    __syncthreads();  // the tile may be overwritten
  }
}

// Where neither side's strides express the other's shape (a strided output of a reshape).
template <class Bits>
__global__ void copy_elements(const Bits* from, Bits* to, TensorDesc from_desc, TensorDesc to_desc,
                              int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    to[offset_of(to_desc, i)] = from[offset_of(from_desc, i)];
  }
}

// As many as there are blocks' worth of work, up to several times the machine.
unsigned grid_for(const DeviceInfo& device, int64_t blocks) {
  return static_cast<unsigned>(
      std::clamp<int64_t>(blocks, 1, int64_t{32} * device.multiprocessors));
}

template <class Bits>
std::unique_ptr<PreparedOp> prepare_tiles(const CopyPlan& copy, const void* from, void* to,
                                          const DeviceInfo& device) {
  auto* const kernel = copy.transposes ? copy_transposing<Bits> : copy_runs<Bits>;
  load_kernel(kernel);
  return make_prepared([=, blocks = grid_for(device, copy.tiles)](void* stream) {
    kernel<<<blocks, kThreads, 0, as_cuda_stream(stream)>>>(static_cast<const Bits*>(from),
                                                            static_cast<Bits*>(to), copy);
    check_launch();
  });
}

// `from` and `to` are aligned to `alignment` bytes.
template <class Bits>
std::unique_ptr<PreparedOp> prepare_copy(const TensorDesc& from_desc, const TensorDesc& to_desc,
                                         const void* from, void* to, int64_t alignment,
                                         const DeviceInfo& device) {
  constexpr int64_t kWide = 16 / int64_t{sizeof(Bits)};
  CopyPlan copy = plan_copy(from_desc, to_desc);
  if (alignment >= 16 && !copy.transposes && widen_copy(copy, kWide)) {
    return prepare_tiles<uint4>(copy, from, to, device);
  }
  return prepare_tiles<Bits>(copy, from, to, device);
}

template <class Bits>
std::unique_ptr<PreparedOp> prepare_as(const Problem& p, const Buffers& buffers) {
  const TensorDesc& x = p.inputs[0];
  const TensorDesc& y = p.outputs[0];
  const auto* from = static_cast<const Bits*>(buffers.inputs[0]);
  auto* to = static_cast<Bits*>(buffers.outputs[0]);
  const int64_t count = y.count();
  if (count == 0) {
    return make_prepared([](void*) {});
  }
  if (const auto view = p.op->view(*p.attrs, x, y.shape)) {
    return prepare_copy<Bits>(view->desc, y, from + view->offset, to,
                              std::min(view->desc.alignment_bytes, y.alignment_bytes), p.device);
  }
  // Only a reshape comes here. Its dense output looks just as well through the input's shape.
  if (const auto view = reshape_view(y, x.shape)) {
    return prepare_copy<Bits>(x, view->desc, from, to,
                              std::min(x.alignment_bytes, y.alignment_bytes), p.device);
  }
  load_kernel(copy_elements<Bits>);
  const unsigned blocks = grid_for(p.device, (count + kThreads - 1) / kThreads);
  return make_prepared([=](void* stream) {
    copy_elements<Bits><<<blocks, kThreads, 0, as_cuda_stream(stream)>>>(from, to, x, y, count);
    check_launch();
  });
}

Support supports(const Problem& p) {
  return Support::yes(p.op->work(p).bytes / 3e6, "the GPU's only copy");
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  return size_of(p.inputs[0].dtype) == 2 ? prepare_as<uint16_t>(p, buffers)
                                         : prepare_as<uint32_t>(p, buffers);
}

constexpr KernelEntry copy_kernel(std::string_view op, std::string_view name) {
  return {
      .op = op,
      .name = name,
      .backend = Backend::kCuda,
      .supports = supports,
      .prepare = prepare,
  };
}

}  // namespace

extern const KernelEntry reshape_cuda_copy;
extern const KernelEntry transpose_cuda_copy;
extern const KernelEntry slice_cuda_copy;
extern const KernelEntry broadcast_cuda_copy;
const KernelEntry reshape_cuda_copy = copy_kernel("reshape", "reshape_cuda_copy");
const KernelEntry transpose_cuda_copy = copy_kernel("transpose", "transpose_cuda_copy");
const KernelEntry slice_cuda_copy = copy_kernel("slice", "slice_cuda_copy");
const KernelEntry broadcast_cuda_copy = copy_kernel("broadcast", "broadcast_cuda_copy");

}  // namespace me
