// softmax_grad_cuda_rows: dx[M, N] = y ∘ (g - Σ y·g), one launch, whole rows to a block.
//
// Per row: dot = Σ y·g, one fp32 reduction; then y·(g - dot). The Jacobian diag(y) - y·yᵀ is never
// formed. By the row's length and strides, never by the number of rows:
//
//   held in lanes   N <= 512     a row to 1 .. 32 lanes, 8 or 16 elements of y and of g in each
//   held in block   N <= 16384   a row to a block of 64 .. 1024 threads, 16 elements each
//   long            more         a row to a block, by chunks, twice; the chunks that fit stay in
//                                shared memory in between, the others come again (from L2, mostly)
//   tiled           y or g with column strides above row strides (transposed), any N: 32 bytes of
//                   rows to a block, through shared memory by chunks (ops/cuda/reduce.cuh)
//
// Rows that are held are read once. They stay in their own type: y and g of 16 fp32 elements are 32
// registers, and 64 are all that a thread of 1024 has.
//
// Budget: long: up to 3 chunks of 64 KiB of shared memory. tiled: 256 threads and slots of 16 KiB;
// rows of 3584 16-bit elements stay whole in 14 slots on an H200.
//
// Numerics: fp32 throughout, one rounding at the store. The order of a row's sum depends on N, the
// strides and the type alone.
#include <algorithm>
#include <string>

#include "ops/base/kernel.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/reduce.cuh"

namespace me {
namespace {

constexpr int kLanesBlock = 128;  // threads of a block whose rows are held in lanes
constexpr int kLanesBlocks = 8;   // of them on a multiprocessor, at least: 64 registers
constexpr int kFewItems = 8;      // elements of a thread, up to 8·32 to a row
constexpr int kManyItems = 16;    // up to 16·32 to a warp, 16·1024 to a block
constexpr int kMostThreads = 1024;
constexpr int kLongVectors = 2;  // of 16 bytes of y and as many of g, of a thread in a chunk
constexpr int kTileThreads = 256;
constexpr int64_t kStaticBytes = 2304;  // of shared memory, at most, beside the dynamic

// Three tensors of a kind of access each.
template <class Access>
struct Operands {
  Access y;
  Access g;
  RowAccess dx;
};

// ---- What a thread holds --------------------------------------------------------------------

template <class T, int kVectors>
struct Held {
  Vector<T> y[kVectors];
  Vector<T> g[kVectors];

  // `length` elements from y and g on; behind them 0, which adds nothing.
  __device__ void load(const T* y_row, const T* g_row, const Operands<RowAccess>& at,
                       int64_t length, int thread, int threads) {
    const T zero = from_f32<T>(0.0f);
    load_row(y_row, at.y.rows.stride, at.y.wide, length, thread, threads, zero, y);
    load_row(g_row, at.g.rows.stride, at.g.wide, length, thread, threads, zero, g);
  }

  __device__ float dot(float sum) const {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int j = 0; j < Vector<T>::kSize; ++j) {
        sum += to_f32(y[k].at[j]) * to_f32(g[k].at[j]);
      }
    }
    return sum;
  }

  // g becomes dx.
  __device__ void apply(float dot) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
#pragma unroll
      for (int j = 0; j < Vector<T>::kSize; ++j) {
        g[k].at[j] = from_f32<T>(to_f32(y[k].at[j]) * (to_f32(g[k].at[j]) - dot));
      }
    }
  }
};

// ---- Rows held in registers -----------------------------------------------------------------

template <class T, int kItems, bool kBlock>
__device__ void grad_row(const T* y, const T* g, T* dx, const Operands<RowAccess>& at,
                         int64_t length, Team<kBlock>& team) {
  Held<T, kItems / Vector<T>::kSize> held;
  held.load(y, g, at, length, team.thread(), team.size());
  held.apply(team.template reduce<SumOf>(held.dot(0.0f)));
  store_row(dx, at.dx.rows.stride, at.dx.wide, length, team.thread(), team.size(), held.g);
}

template <class T, int kItems>
__global__ void __launch_bounds__(kLanesBlock, kLanesBlocks)
    grad_lanes(const T* y, const T* g, T* dx, const __grid_constant__ Operands<RowAccess> at,
               int lanes) {
  Team<false> team(lanes);
  const int together = kLanesBlock / lanes;
  const int64_t count = at.dx.rows.count;
  for (int64_t first = int64_t{blockIdx.x} * together; first < count;
       first += int64_t{gridDim.x} * together) {
    const int64_t row = first + static_cast<int>(threadIdx.x) / lanes;
    // Lanes without a row take part in the shuffles, over nothing.
    const bool live = row < count;
    grad_row<T, kItems>(
        y + (live ? at.y.rows.offset(row) : 0), g + (live ? at.g.rows.offset(row) : 0),
        dx + (live ? at.dx.rows.offset(row) : 0), at, live ? at.dx.rows.length : 0, team);
  }
}

template <class T>
__global__ void __launch_bounds__(kMostThreads)
    grad_block(const T* y, const T* g, T* dx, const __grid_constant__ Operands<RowAccess> at) {
  __shared__ Team<true>::Scratch scratch;
  Team<true> team(scratch);
  for (int64_t row = blockIdx.x; row < at.dx.rows.count; row += gridDim.x) {
    grad_row<T, kManyItems>(y + at.y.rows.offset(row), g + at.g.rows.offset(row),
                            dx + at.dx.rows.offset(row), at, at.dx.rows.length, team);
  }
}

// ---- Long rows ------------------------------------------------------------------------------

// The first `kept` chunks stay in shared memory, each thread's vectors where only it looks, so that
// no barrier is needed. The second pass goes backwards: what was read last is likeliest in L2.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    grad_long(const T* y, const T* g, T* dx, const __grid_constant__ Operands<RowAccess> at,
              int kept) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Team<true>::Scratch scratch;
  auto* const keep = reinterpret_cast<Vector<T>*>(shared);  // [kept·2·kLongVectors][threads]
  Team<true> team(scratch);
  const int thread = team.thread();
  const int threads = team.size();
  const int64_t chunk = int64_t{threads} * kLongVectors * Vector<T>::kSize;
  const int64_t length = at.dx.rows.length;
  const auto chunks = static_cast<int>((length + chunk - 1) / chunk);
  for (int64_t row = blockIdx.x; row < at.dx.rows.count; row += gridDim.x) {
    const T* const y_row = y + at.y.rows.offset(row);
    const T* const g_row = g + at.g.rows.offset(row);
    T* const dx_row = dx + at.dx.rows.offset(row);
    Held<T, kLongVectors> held;
    const auto fetch = [&](int c) {
      held.load(y_row + c * chunk * at.y.rows.stride, g_row + c * chunk * at.g.rows.stride, at,
                length - c * chunk, thread, threads);
    };
    const auto kept_vector = [&](int c, int k) -> Vector<T>& {
      return keep[(c * 2 * kLongVectors + k) * threads + thread];
    };
    float sum = 0.0f;
    for (int c = 0; c < chunks; ++c) {
      fetch(c);
      if (c < kept) {
#pragma unroll
        for (int k = 0; k < kLongVectors; ++k) {
          kept_vector(c, k) = held.y[k];
          kept_vector(c, kLongVectors + k) = held.g[k];
        }
      }
      sum += held.dot(0.0f);
    }
    const float dot = team.reduce<SumOf>(sum);
    for (int c = chunks - 1; c >= 0; --c) {
      if (c < kept) {
#pragma unroll
        for (int k = 0; k < kLongVectors; ++k) {
          held.y[k] = kept_vector(c, k);
          held.g[k] = kept_vector(c, kLongVectors + k);
        }
      } else {
        fetch(c);
      }
      held.apply(dot);
      store_row(dx_row + c * chunk * at.dx.rows.stride, at.dx.rows.stride, at.dx.wide,
                length - c * chunk, thread, threads, held.g);
    }
  }
}

// ---- Tiles ----------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    grad_tiles(const T* y, const T* g, T* dx, const __grid_constant__ Operands<TileAccess> at,
               const __grid_constant__ TilePlan plan) {
  constexpr int kRows = kTileRows<T>;
  constexpr int kPack = kTilePack<T>;
  constexpr int kWarps = kTileThreads / kWarpLanes;
  extern __shared__ __align__(16) unsigned char shared[];  // slots: a chunk of y, then one of g
  __shared__ float sums[kWarps + 1][kRows];                // of each warp, then of the rows
  __shared__ int64_t y_at[kRows];
  __shared__ int64_t g_at[kRows];
  __shared__ int64_t dx_at[kRows];
  static_assert(sizeof(sums) + 3 * sizeof(y_at) <= kStaticBytes);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
  const int own_row = lane % kTileWords * kPack;  // the first of kPack, in the tile
  const int g_part = plan.slot_bytes / 2;         // of a slot
  const int64_t length = at.dx.rows.length;

  for (int64_t tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
    const int64_t first_row = tile * kRows;
    find_tile_rows<T>(at.y.rows, first_row, y_at);
    find_tile_rows<T>(at.g.rows, first_row, g_at);
    find_tile_rows<T>(at.dx.rows, first_row, dx_at);
    __syncthreads();  // the offsets are there
    const auto load = [&](int chunk, int slot) {
      unsigned char* const to = shared + slot * plan.slot_bytes;
      const int64_t begin = int64_t{chunk} * blockDim.x;
      load_tile(y, at.y, first_row, y_at, begin, to);
      load_tile(g, at.g, first_row, g_at, begin, to + g_part);
    };
    float own[kPack] = {};
    float y_values[kPack][kTileColumns];
    float g_values[kPack][kTileColumns];
    const auto values = [&](int slot, int count) {
      const unsigned char* const from = shared + slot * plan.slot_bytes;
      tile_values<T>(from, count, 0.0f, y_values);
      tile_values<T>(from + g_part, count, 0.0f, g_values);
    };
    const auto reduce = [&](int chunk, int slot) {
      const int count = tile_count(chunk, length);
      if (count == 0) return;
      values(slot, count);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < kTileColumns; ++j) sum += y_values[i][j] * g_values[i][j];
        own[i] += sum;
      }
    };
    // Four lanes of a warp share a row, then as many warps as there are.
    const auto sum_rows = [&] {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        for (int step = kTileWords; step < kWarpLanes; step *= 2) {
          own[i] += __shfl_xor_sync(kFullWarp, own[i], step);
        }
        if (lane < kTileWords) sums[warp][own_row + i] = own[i];
      }
      __syncthreads();  // every warp's sums are there
      for (int row = warp; row < kRows; row += warps) {
        const float sum = reduce_lanes<SumOf>(lane < warps ? sums[lane][row] : 0.0f);
        if (lane == 0) sums[kWarps][row] = sum;
      }
      __syncthreads();  // the rows' are there
    };
    const auto apply = [&](int chunk, int slot) {
      const int count = tile_count(chunk, length);
      if (count == 0) return;
      values(slot, count);
      const int64_t column =
          int64_t{chunk} * blockDim.x + static_cast<int>(threadIdx.x) / kTileWords * kTileColumns;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (first_row + own_row + i >= at.dx.rows.count) continue;
        const float dot = sums[kWarps][own_row + i];
#pragma unroll
        for (int j = 0; j < kTileColumns; ++j) {
          g_values[i][j] = y_values[i][j] * (g_values[i][j] - dot);
        }
        store_tile_row(dx + dx_at[own_row + i] + column * at.dx.rows.stride, at.dx.rows.stride,
                       at.dx.wide, count, g_values[i]);
      }
    };
    sweep_tile(plan, load, reduce, sum_rows, apply);
  }
}

// ---- Host side ------------------------------------------------------------------------------

unsigned grid_of(int64_t blocks) { return static_cast<unsigned>(std::min(blocks, kMostBlocks)); }

bool is_tiled(const Problem& p) {
  return rows_are_adjacent(p.inputs[0]) || rows_are_adjacent(p.inputs[1]);
}

// A power of two, so that teams do not straddle warps.
int lanes_for(int64_t length) {
  int lanes = 1;
  while (lanes < kWarpLanes && lanes * kFewItems < length) lanes *= 2;
  return lanes;
}

template <class T>
struct Pointers {
  const T* y;
  const T* g;
  T* dx;
};

template <class T>
std::unique_ptr<PreparedOp> prepare_lanes(const Pointers<T>& to, const Operands<RowAccess>& at) {
  const int64_t length = at.dx.rows.length;
  const int lanes = lanes_for(length);
  const int together = kLanesBlock / lanes;
  const unsigned blocks = grid_of((at.dx.rows.count + together - 1) / together);
  auto* const kernel =
      length <= kFewItems * kWarpLanes ? grad_lanes<T, kFewItems> : grad_lanes<T, kManyItems>;
  load_kernel(kernel);
  return make_prepared([=](void* stream) {
    kernel<<<blocks, kLanesBlock, 0, as_cuda_stream(stream)>>>(to.y, to.g, to.dx, at, lanes);
    check_launch();
  });
}

template <class T>
std::unique_ptr<PreparedOp> prepare_block(const Pointers<T>& to, const Operands<RowAccess>& at) {
  const int64_t wanted = (at.dx.rows.length + kManyItems - 1) / kManyItems;
  const auto threads = static_cast<unsigned>((wanted + kWarpLanes - 1) / kWarpLanes * kWarpLanes);
  const unsigned blocks = grid_of(at.dx.rows.count);
  load_kernel(grad_block<T>);
  return make_prepared([=](void* stream) {
    grad_block<T><<<blocks, threads, 0, as_cuda_stream(stream)>>>(to.y, to.g, to.dx, at);
    check_launch();
  });
}

template <class T>
std::unique_ptr<PreparedOp> prepare_long(const Pointers<T>& to, const Operands<RowAccess>& at,
                                         const DeviceInfo& device) {
  constexpr int64_t kSharedRow = 96 * 1024;  // of y and g; two such fit a multiprocessor of 9.0
  const int64_t row_bytes = 2 * at.dx.rows.length * int64_t{sizeof(T)};
  const int threads = row_bytes <= kSharedRow ? kMostThreads / 2 : kMostThreads;
  const int64_t chunk_bytes = threads * 2 * kLongVectors * int64_t{16};
  const auto kept = static_cast<int>(std::min((row_bytes + chunk_bytes - 1) / chunk_bytes,
                                              (device.shared_bytes - kStaticBytes) / chunk_bytes));
  const unsigned blocks = grid_of(at.dx.rows.count);
  allow_shared_bytes(grad_long<T>, kept * chunk_bytes);
  load_kernel(grad_long<T>);
  return make_prepared([=](void* stream) {
    grad_long<T><<<blocks, static_cast<unsigned>(threads), static_cast<size_t>(kept * chunk_bytes),
                   as_cuda_stream(stream)>>>(to.y, to.g, to.dx, at, kept);
    check_launch();
  });
}

template <class T>
std::unique_ptr<PreparedOp> prepare_tiles(const Pointers<T>& to, const Problem& p) {
  const Operands<TileAccess> at{tile_access(p.inputs[0]), tile_access(p.inputs[1]),
                                row_access(p.outputs[0])};
  const TilePlan plan = plan_tiles(at.dx.rows.count, at.dx.rows.length, p.outputs[0].dtype, 2,
                                   kTileThreads, kStaticBytes, p.device.shared_bytes);
  const unsigned blocks = grid_of(plan.tiles);
  allow_shared_bytes(grad_tiles<T>, plan.shared_bytes());
  load_kernel(grad_tiles<T>);
  return make_prepared([=](void* stream) {
    grad_tiles<T>
        <<<blocks, static_cast<unsigned>(plan.threads), static_cast<size_t>(plan.shared_bytes()),
           as_cuda_stream(stream)>>>(to.y, to.g, to.dx, at, plan);
    check_launch();
  });
}

template <class T>
std::unique_ptr<PreparedOp> prepare_as(const Problem& p, const Buffers& buffers) {
  if (p.outputs[0].count() == 0) {
    return make_prepared([](void*) {});
  }
  const Pointers<T> to{static_cast<const T*>(buffers.inputs[0]),
                       static_cast<const T*>(buffers.inputs[1]),
                       static_cast<T*>(buffers.outputs[0])};
  if (is_tiled(p)) return prepare_tiles(to, p);
  const Operands<RowAccess> at{row_access(p.inputs[0]), row_access(p.inputs[1]),
                               row_access(p.outputs[0])};
  const int64_t length = at.dx.rows.length;
  if (length <= kManyItems * kWarpLanes) return prepare_lanes(to, at);
  if (length <= kManyItems * kMostThreads) return prepare_block(to, at);
  return prepare_long(to, at, p.device);
}

Support supports(const Problem& p) {
  const int64_t length = p.outputs[0].shape.back();
  std::string reason = "rows of " + std::to_string(length);
  if (is_tiled(p)) {
    reason += " side by side, in tiles";
  } else if (length <= kManyItems * kWarpLanes) {
    reason += ", " + std::to_string(lanes_for(length)) + " lanes to each";
  } else if (length <= kManyItems * kMostThreads) {
    reason += ", a block to each, held in registers";
  } else {
    reason += ", a block to each, by chunks";
  }
  return Support::yes(2.2 + p.op->work(p).bytes / 3.5e6, std::move(reason));
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  return with_dtype(p.outputs[0].dtype,
                    [&](auto dtype) { return prepare_as<CudaElement<dtype()>>(p, buffers); });
}

}  // namespace

extern const KernelEntry softmax_grad_cuda_rows;
const KernelEntry softmax_grad_cuda_rows = {
    .op = "softmax_grad",
    .name = "softmax_grad_cuda_rows",
    .backend = Backend::kCuda,
    .supports = supports,
    .prepare = prepare,
};

}  // namespace me
