// What the CUDA kernels of linear share: how they see X, W, b and Y, the epilogue, the sum over the
// parts of a split K, and what a tiling is expected to cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/base/kernel.h"
#include "ops/base/rows.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"
#include "ops/linear/choice.h"
#include "ops/linear/linear.h"
#include "ops/linear/tile_order.h"

namespace me {

// ---- operands ----

// X as [M, K] or W as [N, K]: to the kernels they are the same thing, rows along K. A weight stored
// [K, N] is one whose K stride is the large one.
struct LinearOperand {
  const void* data = nullptr;
  Rows rows;
  bool k_aligned = false;    // K is contiguous, and every row starts at a multiple of 16 bytes
  bool row_aligned = false;  // rows are neighbours in memory, and every k starts at such a multiple
  bool row_closer = false;   // rows have one step, and it is less than that along K
};

inline LinearOperand operand_of(const TensorDesc& desc, const void* data) {
  LinearOperand operand{data, rows_of(desc)};
  const Rows& rows = operand.rows;
  const int64_t item = size_of(desc.dtype);
  const Dims& steps = rows.leading.strides;
  const bool base_aligned = desc.alignment_bytes >= 16;
  operand.k_aligned = base_aligned && rows.stride == 1;
  for (int64_t step : steps) operand.k_aligned = operand.k_aligned && step * item % 16 == 0;
  operand.row_aligned = base_aligned && steps.rank() == 1 && steps[0] == 1 &&
                        (rows.length <= 1 || rows.stride * item % 16 == 0);
  operand.row_closer = steps.rank() == 1 && steps[0] < rows.stride;
  return operand;
}

inline LinearOperand x_operand(const Problem& p, const void* data) {
  return operand_of(p.inputs[0], data);
}

inline LinearOperand w_operand(const Problem& p, const void* data) {
  const LinearSizes s = linear_sizes(p);
  const WeightStrides strides = weight_strides(p);
  TensorDesc desc = p.inputs[1];
  desc.shape = {s.n, s.k};
  desc.strides = {strides.n, strides.k};
  return operand_of(desc, data);
}

// ---- epilogue ----

// Where accumulators go and what happens to them on the way.
struct LinearEpilogue {
  void* y = nullptr;
  Rows rows;
  DType dtype = DType::kF32;
  bool wide = false;           // 8 neighbours, from a multiple of 8 on, may be stored as vectors
  const void* bias = nullptr;  // nothing: no bias
  int64_t bias_stride = 0;
  DType bias_dtype = DType::kF32;
  bool relu = false;
};

inline bool stores_wide(const TensorDesc& y) {
  const Rows rows = rows_of(y);
  if (rows.stride != 1 || y.alignment_bytes < 16) return false;
  for (int64_t stride : rows.leading.strides) {
    if (stride * size_of(y.dtype) % 16 != 0) return false;
  }
  return true;
}

inline LinearEpilogue epilogue_of(const Problem& p, const Buffers& buffers) {
  LinearEpilogue e;
  e.y = buffers.outputs[0];
  e.rows = rows_of(p.outputs[0]);
  e.dtype = p.outputs[0].dtype;
  e.wide = stores_wide(p.outputs[0]);
  if (has_bias(p)) {
    e.bias = buffers.inputs[2];
    e.bias_stride = p.inputs[2].strides[0];
    e.bias_dtype = p.inputs[2].dtype;
  }
  e.relu = attrs_as<LinearAttrs>(*p.attrs).activation == Activation::kRelu;
  return e;
}

// Bare accumulators as one part, [M, N] in fp32, of a split sum.
inline LinearEpilogue partial_epilogue(const LinearSizes& s, void* workspace) {
  TensorDesc desc = dense(DType::kF32, {s.m, s.n});
  desc.alignment_bytes = kWorkspaceAlignment;
  LinearEpilogue e;
  e.y = workspace;
  e.rows = rows_of(desc);
  // All parts must be aligned, not just the first; M·N is a multiple of 4 where N is.
  e.wide = s.n % 4 == 0 && stores_wide(desc);
  return e;
}

__device__ inline float load_element(const void* data, int64_t index, DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return to_f32(static_cast<const __half*>(data)[index]);
    case DType::kBF16:
      return to_f32(static_cast<const __nv_bfloat16*>(data)[index]);
    case DType::kF32:
      break;
  }
  return static_cast<const float*>(data)[index];
}

__device__ inline float bias_at(const LinearEpilogue& e, int64_t n) {
  return e.bias == nullptr ? 0.0f : load_element(e.bias, n * e.bias_stride, e.bias_dtype);
}

// Bias and activation, in fp32. ReLU keeps NaN and makes -0 +0. Without a branch: one instruction
// for each of the many elements of a tile.
__device__ inline float finish(const LinearEpilogue& e, float acc, float bias) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return max_or_nan(acc + bias, e.relu ? 0.0f : -kInfinity);
}

template <class T, int kCount>
__device__ inline void store_values_as(T* to, int64_t stride, bool wide,
                                       const float (&values)[kCount], int count) {
  if (wide && count == kCount) {
    constexpr int kWide = std::min(kCount, 16 / static_cast<int>(sizeof(T)));
#pragma unroll
    for (int i = 0; i < kCount; i += kWide) {
      Vector<T, kWide> vector;
#pragma unroll
      for (int j = 0; j < kWide; ++j) vector.at[j] = from_f32<T>(values[i + j]);
      *reinterpret_cast<Vector<T, kWide>*>(to + i) = vector;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (i < count) to[i * stride] = from_f32<T>(values[i]);
  }
}

// Finished values into `count` columns of one row of y (the epilogue's, or one part of it), from
// the element at `offset` on.
template <int kCount>
__device__ inline void store_values(const LinearEpilogue& e, void* y, int64_t offset,
                                    const float (&values)[kCount], int count) {
  const int64_t stride = e.rows.stride;
  switch (e.dtype) {
    case DType::kF16:
      return store_values_as(static_cast<__half*>(y) + offset, stride, e.wide, values, count);
    case DType::kBF16:
      return store_values_as(static_cast<__nv_bfloat16*>(y) + offset, stride, e.wide, values,
                             count);
    case DType::kF32:
      return store_values_as(static_cast<float*>(y) + offset, stride, e.wide, values, count);
  }
}

// ---- the sum over the parts of a split K ----

constexpr int kReduceThreads = 256;

// Y from `splits` parts [M, N]: a thread per element, neighbours along N; the parts are added in
// their order, so that the result does not depend on which block came first.
static __global__ void __launch_bounds__(kReduceThreads)
    linear_reduce(const float* parts, int64_t m, int64_t n, int splits,
                  const __grid_constant__ LinearEpilogue e) {
  const int64_t count = m * n;
  const int64_t step = int64_t{gridDim.x} * kReduceThreads;
  for (int64_t i = int64_t{blockIdx.x} * kReduceThreads + threadIdx.x; i < count; i += step) {
    float sum[1] = {0.0f};
#pragma unroll 8
    for (int split = 0; split < splits; ++split) sum[0] += parts[split * count + i];
    const int64_t row = i / n;
    const int64_t column = i - row * n;
    sum[0] = finish(e, sum[0], bias_at(e, column));
    store_values(e, e.y, e.rows.offset(row) + column * e.rows.stride, sum, 1);
  }
}

// Enough blocks to fill the machine several times over, and no more than there is work for.
inline unsigned reduce_blocks(const DeviceInfo& device, const LinearSizes& s) {
  const int64_t wanted = (s.m * s.n + kReduceThreads - 1) / kReduceThreads;
  return static_cast<unsigned>(
      std::clamp<int64_t>(wanted, 1, int64_t{16} * std::max(1, device.multiprocessors)));
}

// ---- the work of a block ----

// M-tiles that share a pass over W: see grouped_tile.
constexpr int64_t kTileGroup = 8;

// How a problem is cut: block b computes tile b % (m_tiles·n_tiles) over part b / (m_tiles·n_tiles)
// of K.
struct LinearGrid {
  int64_t m = 0, n = 0, k = 0;
  int64_t m_tiles = 0, n_tiles = 0;
  int64_t split_k = 0;  // elements of K in each part but the last
};

struct LinearParams {
  LinearGrid grid;
  LinearOperand x, w;
  LinearEpilogue epilogue;
  int64_t part_elements = 0;  // of Y between the parts of a split K; 0: there is one
};

struct LinearBlock {
  int64_t m0, n0;          // first row and column of the tile
  int64_t k_begin, k_end;  // empty for K = 0
  int64_t split;
};

__device__ inline LinearBlock find_block(const LinearGrid& grid, int bm, int bn) {
  const int64_t tiles = grid.m_tiles * grid.n_tiles;
  const int64_t split = int64_t{blockIdx.x} / tiles;
  const Tile<int64_t> tile = grouped_tile<int64_t>(int64_t{blockIdx.x} - split * tiles,
                                                   grid.m_tiles, grid.n_tiles, kTileGroup);
  LinearBlock block;
  block.m0 = tile.m * bm;
  block.n0 = tile.n * bn;
  block.k_begin = split * grid.split_k;
  const int64_t k_end = block.k_begin + grid.split_k;
  block.k_end = k_end < grid.k ? k_end : grid.k;
  block.split = split;
  return block;
}

// ---- tiles of 16-bit operands in shared memory ----

constexpr int kBK = 64;    // 128 bytes of K: one swizzled line
constexpr int kChunk = 8;  // elements in 16 bytes
constexpr int kLineChunks = kBK / kChunk;
constexpr int kLineBytes = kBK * 2;

// Byte offset of chunk c of row r in lines of 128 bytes.
__host__ __device__ constexpr uint32_t swizzled(int r, int c) {
  return static_cast<uint32_t>(r * kLineBytes + ((c ^ (r & 7)) << 4));
}

enum class Access : uint8_t {
  kWide,    // chunks lie at multiples of 16 bytes
  kPairs,   // K is contiguous, at any address
  kSingle,  // any strides
};

// A thread's chunks of one operand: kCount of kRows·8.
template <class C, int kRows>
struct StridedCopier {
  static constexpr int kCount = kRows * kLineChunks / C::kThreads;
  const uint16_t* from[kCount];
  int64_t stride;
  int64_t k_left;  // elements of K from the next stage's start on
  uint32_t valid = 0;
  Access access;
  bool along_rows;          // neighbouring threads have neighbouring rows, not neighbouring chunks
  uint32_t raw[kCount][5];  // 3 words, then the last 2 halves, or for `shifted` the first and last
  uint32_t shifted = 0;     // a bit per chunk: see fetch_pairs

  __device__ StridedCopier(const LinearOperand& operand, int64_t row0, int64_t row_count,
                           const LinearBlock& block) {
    stride = operand.rows.stride;
    k_left = block.k_end - block.k_begin;
    access = operand.k_aligned ? Access::kWide : stride == 1 ? Access::kPairs : Access::kSingle;
    along_rows = operand.row_closer;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t row = row0 + row_of(i);
      const bool inside = row < row_count;
      valid |= (inside ? 1u : 0u) << i;
      from[i] = static_cast<const uint16_t*>(operand.data) + operand.rows.offset(inside ? row : 0) +
                (block.k_begin + chunk_of(i) * kChunk) * stride;
    }
  }
  __device__ int index(int i) const { return static_cast<int>(threadIdx.x) + i * C::kThreads; }
  __device__ int row_of(int i) const {
    return along_rows ? index(i) % kRows : index(i) / kLineChunks;
  }
  __device__ int chunk_of(int i) const {
    return along_rows ? index(i) / kRows : index(i) % kLineChunks;
  }

  // Starts the loads of the next stage; nothing waits for them until store().
  __device__ void fetch() {
    shifted = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int64_t inside = valid >> i & 1 ? k_left - chunk_of(i) * kChunk : 0;
      if (inside >= kChunk && access == Access::kWide) {
        const uint4 chunk = *reinterpret_cast<const uint4*>(from[i]);
        raw[i][0] = chunk.x, raw[i][1] = chunk.y, raw[i][2] = chunk.z;
        raw[i][3] = chunk.w, raw[i][4] = 0;
      } else if (inside >= kChunk && access == Access::kPairs) {
        fetch_pairs(i);
      } else {
        fetch_single(i, inside);
      }
      from[i] += kBK * stride;
    }
    k_left -= kBK;
  }
  // A chunk at a multiple of 4 bytes is 3 words and 2 halves; 2 bytes off that, it is a half, 3
  // words and a half. Written as the same loads at different addresses, lanes do not diverge.
  __device__ void fetch_pairs(int i) {
    const uint32_t off = reinterpret_cast<uintptr_t>(from[i]) >> 1 & 1;
    const auto* words = reinterpret_cast<const uint32_t*>(from[i] + off);
#pragma unroll
    for (int j = 0; j < 3; ++j) raw[i][j] = words[j];
    raw[i][3] = from[i][off != 0 ? 0 : 6];
    raw[i][4] = from[i][7];
    shifted |= off << i;
  }
  __device__ void fetch_single(int i, int64_t inside) {
    uint32_t half[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) half[j] = j < inside ? from[i][j * stride] : 0;
#pragma unroll
    for (int j = 0; j < 3; ++j) raw[i][j] = half[2 * j] | half[2 * j + 1] << 16;
    raw[i][3] = half[6];
    raw[i][4] = half[7];
  }

  // `to`: the operand's lines in a stage.
  __device__ void store(uint8_t* to) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t(&r)[5] = raw[i];
      uint4 chunk;
      if (shifted >> i & 1) {
        chunk = {r[3] | r[0] << 16, r[0] >> 16 | r[1] << 16, r[1] >> 16 | r[2] << 16,
                 r[2] >> 16 | r[4] << 16};
      } else {
        chunk = {r[0], r[1], r[2], r[3] | r[4] << 16};
      }
      *reinterpret_cast<uint4*>(to + swizzled(row_of(i), chunk_of(i))) = chunk;
    }
  }
};

// ---- what a tiling costs ----

// One way to tile. `shared_bytes` and `resident` (blocks that registers and threads let share a
// multiprocessor) are of one block; `rate` is the part of the multiprocessor's arithmetic that its
// inner loop reaches.
struct LinearTile {
  std::string_view name;
  int bm = 0, bn = 0, bk = 0;
  int shared_bytes = 0;
  int resident = 1;
  double rate = 1;
  double step_us = 0;  // the least for a step along K: latency
};

// A tile, and in how many parts it goes through K.
struct LinearChoice {
  const LinearTile* tile = nullptr;
  int index = 0;  // of it in its table
  int64_t splits = 1;
  int64_t split_k = 0;
  double cost_us = 0;
};

inline std::string to_string(const LinearChoice& choice) {
  return "tiles " + std::string(choice.tile->name) + ", K in " + std::to_string(choice.splits) +
         (choice.splits == 1 ? " part" : " parts");
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline LinearGrid grid_of(const LinearSizes& s, const LinearTile& tile, int64_t split_k) {
  return {s.m, s.n, s.k, ceil_div(s.m, tile.bm), ceil_div(s.n, tile.bn), split_k};
}

// The multiprocessor the estimates are made for, an H200's. Only ratios decide.
constexpr double kLaunchUs = 2.5;            // a launch after another in one stream
constexpr double kBlockUs = 1.0;             // prologue and epilogue of a block
constexpr double kMemoryBytesPerUs = 4.0e6;  // of the whole device
constexpr double kCacheBytesPerUs = 45e3;    // from L2, per multiprocessor

// Waves of blocks times the time of one: steps along K bound by arithmetic or by L2, shared among
// the blocks of a multiprocessor. `flops_per_us` is one multiprocessor's peak.
inline double tiling_cost_us(const Problem& p, const LinearTile& tile, int64_t splits,
                             int64_t split_k, double flops_per_us) {
  const LinearSizes s = linear_sizes(p);
  const double sms = std::max(1, p.device.multiprocessors);
  // An SM's shared memory is 1 KiB more than one block may have, and each block is charged 1 KiB.
  const double resident = static_cast<double>(std::clamp<int64_t>(
      (p.device.shared_bytes + 1024) / (tile.shared_bytes + 1024), 1, tile.resident));
  const LinearGrid grid = grid_of(s, tile, split_k);
  const double blocks = static_cast<double>(grid.m_tiles) * static_cast<double>(grid.n_tiles) *
                        static_cast<double>(splits);
  const double waves = std::max(1.0, std::ceil(blocks / (sms * resident)));
  const double sharing = std::min(resident, std::max(1.0, std::ceil(blocks / sms)));
  const double area = static_cast<double>(tile.bm) * tile.bn * tile.bk;
  const double edge = static_cast<double>(tile.bm + tile.bn) * tile.bk;
  const double item = static_cast<double>(size_of(p.inputs[0].dtype));
  const double step_us = std::max({sharing * 2 * area / (flops_per_us * tile.rate),
                                   sharing * edge * item / kCacheBytesPerUs, tile.step_us});
  const double steps = static_cast<double>(ceil_div(std::min(split_k, s.k), tile.bk));
  const double floor_us = p.op->work(p).bytes / kMemoryBytesPerUs;
  double cost = kLaunchUs + std::max(floor_us, waves * (steps * step_us + kBlockUs));
  if (splits > 1) {
    const double parts =
        static_cast<double>(s.m) * static_cast<double>(s.n) * 4 * static_cast<double>(splits);
    cost += kLaunchUs + 2 * parts / kMemoryBytesPerUs;
  }
  return cost;
}

// Every one of `tiles` with every sensible number of parts of K, cheapest first: none that is
// empty, and no more of them where fewer make kFullDevice blocks for each multiprocessor. A tile
// that does not fit the device's shared memory, or whose grid would pass 2^31 blocks, is left out.
template <size_t kTiles>
std::vector<LinearChoice> tilings(const Problem& p, const LinearTile (&tiles)[kTiles],
                                  double flops_per_us) {
  constexpr double kFullDevice = 3;
  const LinearSizes s = linear_sizes(p);
  const double sms = std::max(1, p.device.multiprocessors);
  std::vector<LinearChoice> all;
  for (size_t i = 0; i < kTiles; ++i) {
    const LinearTile& tile = tiles[i];
    if (tile.shared_bytes > p.device.shared_bytes) continue;
    const int64_t steps = std::max<int64_t>(1, ceil_div(s.k, tile.bk));
    double blocks = 0;
    for (const int64_t splits : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32}) {
      if (blocks >= kFullDevice * sms) break;
      const int64_t split_steps = ceil_div(steps, splits);
      if (ceil_div(steps, split_steps) != splits) continue;
      const int64_t split_k = split_steps * tile.bk;
      const LinearGrid grid = grid_of(s, tile, split_k);
      blocks = static_cast<double>(grid.m_tiles) * static_cast<double>(grid.n_tiles) *
               static_cast<double>(splits);
      if (blocks > std::numeric_limits<int32_t>::max()) continue;
      all.push_back({&tile, static_cast<int>(i), splits, split_k,
                     tiling_cost_us(p, tile, splits, split_k, flops_per_us)});
    }
  }
  sort_by_cost(all);
  return all;
}

inline int64_t split_workspace_bytes(const Problem& p, const LinearChoice& choice) {
  const LinearSizes s = linear_sizes(p);
  return choice.splits > 1 ? choice.splits * s.m * s.n * 4 : 0;
}

struct LinearKernel {
  void (*kernel)(LinearParams) = nullptr;
  int threads = 0;
};

inline std::unique_ptr<PreparedOp> prepare_linear(const Problem& p, const Buffers& buffers,
                                                  const LinearChoice& choice,
                                                  const LinearKernel& kernel) {
  const LinearTile& tile = *choice.tile;
  const LinearSizes s = linear_sizes(p);
  if (s.m == 0 || s.n == 0) return make_prepared([](void*) {});
  const LinearEpilogue epilogue = epilogue_of(p, buffers);
  const bool split = choice.splits > 1;
  const LinearParams params{grid_of(s, tile, choice.split_k), x_operand(p, buffers.inputs[0]),
                            w_operand(p, buffers.inputs[1]),
                            split ? partial_epilogue(s, buffers.workspace) : epilogue,
                            split ? s.m * s.n : 0};
  allow_shared_bytes(kernel.kernel, tile.shared_bytes);
  load_kernel(kernel.kernel);
  if (split) load_kernel(linear_reduce);
  const int64_t blocks = params.grid.m_tiles * params.grid.n_tiles * choice.splits;
  return make_prepared([=, shared_bytes = tile.shared_bytes,
                        splits = static_cast<int>(choice.splits),
                        adders = reduce_blocks(p.device, s)](void* stream) {
    const cudaStream_t on = as_cuda_stream(stream);
    kernel.kernel<<<static_cast<unsigned>(blocks), kernel.threads, shared_bytes, on>>>(params);
    check_launch();
    if (!split) return;
    const auto* parts = static_cast<const float*>(params.epilogue.y);
    linear_reduce<<<adders, kReduceThreads, 0, on>>>(parts, s.m, s.n, splits, epilogue);
    check_launch();
  });
}

}  // namespace me
