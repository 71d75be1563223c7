// softmax_cuda_rows: y[M, N] = exp(x - max) / Σ exp(x - max), one launch, whole rows to a block.
//
// By the row's length and strides, never by the number of rows:
//
//   held in lanes   N <= 1024    a row to 1 .. 32 lanes, 8 or 32 logits in the registers of each
//   held in block   N <= 32768   a row to a block of 64 .. 1024 threads, 32 logits each
//   long            more         a row to a block, by chunks, twice; the chunks that fit stay in
//                                shared memory in between, the others come again (from L2, mostly)
//   tiled           column strides above row strides (a transposed x), any N: 32 bytes of rows to a
//                   block, through shared memory by chunks (ops/cuda/reduce.cuh)
//
// A row that is held is read once and its exponentials are computed once:
//
//   m = max x          e = exp(x - m), l = Σ e          y = e·(1/l)
//
// The other two reduce each chunk into a running normaliser (m, l) of each thread, merge those of a
// row, and apply the row's pair to the chunks.
//
// Budget: at most 64 registers where blocks have 1024 threads. long: up to 4 chunks of 64 KiB of
// shared memory, as many as fit; two blocks to a multiprocessor up to 96 KiB of row. tiled: 512
// threads and slots of 16 KiB; rows of 7168 16-bit logits stay whole in 14 slots on an H200.
//
// Numerics: fp32 throughout, one rounding at the store. The order of a row's sum depends on N, the
// strides and the type alone.
#include <algorithm>
#include <string>

#include "ops/base/kernel.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/reduce.cuh"
#include "ops/softmax/cuda_cost.h"
#include "ops/softmax/cuda_rows.cuh"

namespace me {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();  // counts for nothing

constexpr int kLanesBlock = 128;  // threads of a block whose rows are held in lanes
constexpr int kLanesBlocks = 8;   // of them on a multiprocessor, at least: 64 registers
constexpr int kFewItems = 8;      // logits of a thread, up to 8·32 to a row
constexpr int kManyItems = 32;    // up to 32·32 to a warp, 32·1024 to a block
constexpr int kMostThreads = 1024;
constexpr int kLongVectors = 4;  // of 16 bytes, of a thread in a chunk of a long row
constexpr int kTileThreads = 512;
constexpr int64_t kStaticBytes = 2432;  // of shared memory, at most, beside the dynamic

// ---- Rows held in registers -----------------------------------------------------------------

template <class T, int kItems, bool kBlock>
__device__ void softmax_row(const T* x, T* y, const RowAccess& from, const RowAccess& to,
                            int64_t length, Team<kBlock>& team) {
  constexpr int kVectors = kItems / Vector<T>::kSize;
  Vector<T> held[kVectors];
  load_row(x, from.rows.stride, from.wide, length, team.thread(), team.size(), from_f32<T>(kNone),
           held);
  float v[kItems];
  widen(held, v);
  float max = v[0];
#pragma unroll
  for (int i = 1; i < kItems; ++i) max = fmaxf(max, v[i]);
  max = team.template reduce<MaxOf>(max);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    v[i] = exp_of_difference(v[i] - max);
    sum += v[i];
  }
  const float factor = 1.0f / team.template reduce<SumOf>(sum);
#pragma unroll
  for (int i = 0; i < kItems; ++i) v[i] *= factor;
  narrow(v, held);
  store_row(y, to.rows.stride, to.wide, length, team.thread(), team.size(), held);
}

template <class T, int kItems>
__global__ void __launch_bounds__(kLanesBlock, kLanesBlocks)
    softmax_lanes(const T* x, T* y, const __grid_constant__ RowAccess from,
                  const __grid_constant__ RowAccess to, int lanes) {
  Team<false> team(lanes);
  const int together = kLanesBlock / lanes;
  const int64_t count = from.rows.count;
  for (int64_t first = int64_t{blockIdx.x} * together; first < count;
       first += int64_t{gridDim.x} * together) {
    const int64_t row = first + static_cast<int>(threadIdx.x) / lanes;
    // Lanes without a row take part in the shuffles, over nothing.
    const bool live = row < count;
    softmax_row<T, kItems>(x + (live ? from.rows.offset(row) : 0),
                           y + (live ? to.rows.offset(row) : 0), from, to,
                           live ? from.rows.length : 0, team);
  }
}

template <class T>
__global__ void __launch_bounds__(kMostThreads)
    softmax_block(const T* x, T* y, const __grid_constant__ RowAccess from,
                  const __grid_constant__ RowAccess to) {
  __shared__ Team<true>::Scratch scratch;
  Team<true> team(scratch);
  for (int64_t row = blockIdx.x; row < from.rows.count; row += gridDim.x) {
    softmax_row<T, kManyItems>(x + from.rows.offset(row), y + to.rows.offset(row), from, to,
                               from.rows.length, team);
  }
}

// ---- Long rows ------------------------------------------------------------------------------

// The first `kept` chunks stay in shared memory, each thread's vectors where only it looks, so that
// no barrier is needed. The second pass goes backwards: what was read last is likeliest in L2.
template <class T>
__global__ void __launch_bounds__(kMostThreads)
    softmax_long(const T* x, T* y, const __grid_constant__ RowAccess from,
                 const __grid_constant__ RowAccess to, int kept) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ Team<true>::Scratch scratch;
  constexpr int kItems = kLongVectors * Vector<T>::kSize;
  auto* const keep = reinterpret_cast<Vector<T>*>(shared);  // [kept·kLongVectors][threads]
  Team<true> team(scratch);
  const int thread = team.thread();
  const int threads = team.size();
  const int64_t chunk = int64_t{threads} * kItems;
  const int64_t length = from.rows.length;
  const auto chunks = static_cast<int>((length + chunk - 1) / chunk);
  for (int64_t row = blockIdx.x; row < from.rows.count; row += gridDim.x) {
    const T* const x_row = x + from.rows.offset(row);
    T* const y_row = y + to.rows.offset(row);
    Vector<T> held[kLongVectors];
    const auto fetch = [&](int c) {
      load_row(x_row + c * chunk * from.rows.stride, from.rows.stride, from.wide,
               length - c * chunk, thread, threads, from_f32<T>(kNone), held);
    };
    Normalizer own;
    for (int c = 0; c < chunks; ++c) {
      fetch(c);
      if (c < kept) {
#pragma unroll
        for (int k = 0; k < kLongVectors; ++k) {
          keep[(c * kLongVectors + k) * threads + thread] = held[k];
        }
      }
      float v[kItems];
      widen(held, v);
      own = absorb(own, v);
    }
    const Normalizer total = merge_team(team, own);
    for (int c = chunks - 1; c >= 0; --c) {
      if (c < kept) {
#pragma unroll
        for (int k = 0; k < kLongVectors; ++k) {
          held[k] = keep[(c * kLongVectors + k) * threads + thread];
        }
      } else {
        fetch(c);
      }
      float v[kItems];
      widen(held, v);
      normalize(total, v);
      narrow(v, held);
      store_row(y_row + c * chunk * to.rows.stride, to.rows.stride, to.wide, length - c * chunk,
                thread, threads, held);
    }
  }
}

// ---- Tiles ----------------------------------------------------------------------------------

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    softmax_tiles(const T* x, T* y, const __grid_constant__ TileAccess from,
                  const __grid_constant__ RowAccess to, const __grid_constant__ TilePlan plan) {
  constexpr int kRows = kTileRows<T>;
  constexpr int kPack = kTilePack<T>;
  constexpr int kWarps = kTileThreads / kWarpLanes;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float maxima[kWarps + 1][kRows];  // of each warp, then of the rows
  __shared__ float sums[kWarps + 1][kRows];
  __shared__ int64_t x_at[kRows];
  __shared__ int64_t y_at[kRows];
  static_assert(sizeof(maxima) + sizeof(sums) + sizeof(x_at) + sizeof(y_at) <= kStaticBytes);
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
  const int own_row = lane % kTileWords * kPack;  // the first of kPack, in the tile
  const int64_t length = from.rows.length;

  for (int64_t tile = blockIdx.x; tile < plan.tiles; tile += gridDim.x) {
    const int64_t first_row = tile * kRows;
    find_tile_rows<T>(from.rows, first_row, x_at);
    find_tile_rows<T>(to.rows, first_row, y_at);
    __syncthreads();  // the offsets are there
    const auto load = [&](int chunk, int slot) {
      load_tile(x, from, first_row, x_at, int64_t{chunk} * blockDim.x,
                shared + slot * plan.slot_bytes);
    };
    Normalizer own[kPack];
    const auto reduce = [&](int chunk, int slot) {
      const int count = tile_count(chunk, length);
      if (count == 0) return;
      float v[kPack][kTileColumns];
      tile_values<T>(shared + slot * plan.slot_bytes, count, kNone, v);
#pragma unroll
      for (int i = 0; i < kPack; ++i) own[i] = absorb(own[i], v[i]);
    };
    // Four lanes of a warp share a row, then as many warps as there are.
    const auto merge_rows = [&] {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        float max = own[i].max;
        for (int step = kTileWords; step < kWarpLanes; step *= 2) {
          max = fmaxf(max, __shfl_xor_sync(kFullWarp, max, step));
        }
        float sum = own[i].sum * rescale_factor(own[i].max, max);
        for (int step = kTileWords; step < kWarpLanes; step *= 2) {
          sum += __shfl_xor_sync(kFullWarp, sum, step);
        }
        if (lane < kTileWords) {
          maxima[warp][own_row + i] = max;
          sums[warp][own_row + i] = sum;
        }
      }
      __syncthreads();  // every warp's normalisers are there
      Team<false> team(kWarpLanes);
      for (int row = warp; row < kRows; row += warps) {
        const bool live = lane < warps;
        const Normalizer part{live ? maxima[lane][row] : kNone, live ? sums[lane][row] : 0.0f};
        const Normalizer total = merge_team(team, part);
        if (lane == 0) {
          maxima[kWarps][row] = total.max;
          sums[kWarps][row] = total.sum;
        }
      }
      __syncthreads();  // the rows' are there
    };
    const auto apply = [&](int chunk, int slot) {
      const int count = tile_count(chunk, length);
      if (count == 0) return;
      float v[kPack][kTileColumns];
      tile_values<T>(shared + slot * plan.slot_bytes, count, kNone, v);
      const int64_t column =
          int64_t{chunk} * blockDim.x + static_cast<int>(threadIdx.x) / kTileWords * kTileColumns;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (first_row + own_row + i >= from.rows.count) continue;
        normalize({maxima[kWarps][own_row + i], sums[kWarps][own_row + i]}, v[i]);
        store_tile_row(y + y_at[own_row + i] + column * to.rows.stride, to.rows.stride, to.wide,
                       count, v[i]);
      }
    };
    sweep_tile(plan, load, reduce, merge_rows, apply);
  }
}

// ---- Host side ------------------------------------------------------------------------------

unsigned grid_of(int64_t blocks) { return static_cast<unsigned>(std::min(blocks, kMostBlocks)); }

// A power of two, so that teams do not straddle warps.
int lanes_for(int64_t length) {
  int lanes = 1;
  while (lanes < kWarpLanes && lanes * kFewItems < length) lanes *= 2;
  return lanes;
}

// Rows that a block takes together.
int64_t rows_together(const TensorDesc& x) {
  const int64_t length = x.shape.back();
  if (rows_are_adjacent(x)) return kTileColumnBytes / size_of(x.dtype);
  return length <= kManyItems * kWarpLanes ? kLanesBlock / lanes_for(length) : 1;
}

template <class T>
std::unique_ptr<PreparedOp> prepare_lanes(const T* x, T* y, const RowAccess& from,
                                          const RowAccess& to) {
  const int lanes = lanes_for(from.rows.length);
  const int together = kLanesBlock / lanes;
  const unsigned blocks = grid_of((from.rows.count + together - 1) / together);
  auto* const kernel = from.rows.length <= kFewItems * kWarpLanes ? softmax_lanes<T, kFewItems>
                                                                  : softmax_lanes<T, kManyItems>;
  load_kernel(kernel);
  return make_prepared([=](void* stream) {
    kernel<<<blocks, kLanesBlock, 0, as_cuda_stream(stream)>>>(x, y, from, to, lanes);
    check_launch();
  });
}

template <class T>
std::unique_ptr<PreparedOp> prepare_block(const T* x, T* y, const RowAccess& from,
                                          const RowAccess& to) {
  const int64_t wanted = (from.rows.length + kManyItems - 1) / kManyItems;
  const auto threads = static_cast<unsigned>((wanted + kWarpLanes - 1) / kWarpLanes * kWarpLanes);
  const unsigned blocks = grid_of(from.rows.count);
  load_kernel(softmax_block<T>);
  return make_prepared([=](void* stream) {
    softmax_block<T><<<blocks, threads, 0, as_cuda_stream(stream)>>>(x, y, from, to);
    check_launch();
  });
}

template <class T>
std::unique_ptr<PreparedOp> prepare_long(const T* x, T* y, const RowAccess& from,
                                         const RowAccess& to, const DeviceInfo& device) {
  constexpr int64_t kSharedRow = 96 * 1024;  // two such fit a multiprocessor of compute 9.0
  const int64_t row_bytes = from.rows.length * int64_t{sizeof(T)};
  const int threads = row_bytes <= kSharedRow ? kMostThreads / 2 : kMostThreads;
  const int64_t chunk_bytes = threads * kLongVectors * int64_t{16};
  const auto kept = static_cast<int>(std::min((row_bytes + chunk_bytes - 1) / chunk_bytes,
                                              (device.shared_bytes - kStaticBytes) / chunk_bytes));
  const unsigned blocks = grid_of(from.rows.count);
  allow_shared_bytes(softmax_long<T>, kept * chunk_bytes);
  load_kernel(softmax_long<T>);
  return make_prepared([=](void* stream) {
    softmax_long<T>
        <<<blocks, static_cast<unsigned>(threads), static_cast<size_t>(kept * chunk_bytes),
           as_cuda_stream(stream)>>>(x, y, from, to, kept);
    check_launch();
  });
}

template <class T>
std::unique_ptr<PreparedOp> prepare_tiles(const T* x, T* y, const TensorDesc& desc,
                                          const RowAccess& to, const DeviceInfo& device) {
  const TileAccess from = tile_access(desc);
  const TilePlan plan = plan_tiles(from.rows.count, from.rows.length, desc.dtype, 1, kTileThreads,
                                   kStaticBytes, device.shared_bytes);
  const unsigned blocks = grid_of(plan.tiles);
  allow_shared_bytes(softmax_tiles<T>, plan.shared_bytes());
  load_kernel(softmax_tiles<T>);
  return make_prepared([=](void* stream) {
    softmax_tiles<T>
        <<<blocks, static_cast<unsigned>(plan.threads), static_cast<size_t>(plan.shared_bytes()),
           as_cuda_stream(stream)>>>(x, y, from, to, plan);
    check_launch();
  });
}

template <class T>
std::unique_ptr<PreparedOp> prepare_as(const Problem& p, const Buffers& buffers) {
  const TensorDesc& desc = p.inputs[0];
  if (desc.count() == 0) {
    return make_prepared([](void*) {});
  }
  const auto* x = static_cast<const T*>(buffers.inputs[0]);
  auto* y = static_cast<T*>(buffers.outputs[0]);
  const RowAccess to = row_access(p.outputs[0]);
  if (rows_are_adjacent(desc)) return prepare_tiles<T>(x, y, desc, to, p.device);
  const RowAccess from = row_access(desc);
  const int64_t length = from.rows.length;
  if (length <= kManyItems * kWarpLanes) return prepare_lanes<T>(x, y, from, to);
  if (length <= kManyItems * kMostThreads) return prepare_block<T>(x, y, from, to);
  return prepare_long<T>(x, y, from, to, p.device);
}

Support supports(const Problem& p) {
  const TensorDesc& x = p.inputs[0];
  const int64_t length = x.shape.back();
  std::string reason = "rows of " + std::to_string(length);
  if (rows_are_adjacent(x)) {
    reason += " side by side, tiles of " + std::to_string(rows_together(x));
  } else if (length <= kManyItems * kWarpLanes) {
    reason += ", " + std::to_string(lanes_for(length)) + " lanes to each";
  } else if (length <= kManyItems * kMostThreads) {
    reason += ", a block to each, held in registers";
  } else {
    reason += ", a block to each, by chunks";
  }
  return Support::yes(softmax_rows_cost_us(p, rows_together(x)), std::move(reason));
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  return with_dtype(p.outputs[0].dtype,
                    [&](auto dtype) { return prepare_as<CudaElement<dtype()>>(p, buffers); });
}

}  // namespace

extern const KernelEntry softmax_cuda_rows;
const KernelEntry softmax_cuda_rows = {
    .op = "softmax",
    .name = "softmax_cuda_rows",
    .backend = Backend::kCuda,
    .supports = supports,
    .prepare = prepare,
};

}  // namespace me
