// What the CUDA attention kernels share: how they see their operands, the softmax's rescaling, the
// store of a finished row, and the merge of the parts of a split unit.
//
// Maxima are of the raw dot products q·k, before the scale: weights are exp2((s - m)·scale_log2),
// so that neither a large s nor a large scale overflows before the subtraction. A negative scale
// changes the sign of q instead, and a zero one the scores (see fold_scale).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "ops/attention/attention.h"
#include "ops/attention/cuda_schedule.h"
#include "ops/base/kernel.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"
#include "ops/softmax/normalizer.h"

namespace me {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A tensor of [batch, heads, length, dim]; strides in elements. Those of axes of one element say
// nothing, and are set to what keeps every address aligned.
struct AttentionOperand {
  void* data = nullptr;
  int64_t stride_batch = 0;
  int64_t stride_head = 0;
  int64_t stride_row = 0;
  int64_t stride_inner = 1;

  AttentionOperand() = default;
  AttentionOperand(const TensorDesc& t, void* data) : data(data) {
    const auto stride = [&](int axis, int64_t single) {
      return t.shape[axis] == 1 ? single : t.strides[axis];
    };
    stride_batch = stride(0, 0);
    stride_head = stride(1, 0);
    stride_row = stride(2, 0);
    stride_inner = stride(3, 1);
  }

  // Whether all rows are contiguous and start at multiples of 16 bytes, where element 0 does.
  bool has_aligned_rows(int64_t element_bytes) const {
    return stride_inner == 1 &&
           (stride_batch | stride_head | stride_row) % (16 / element_bytes) == 0;
  }
};

struct AttentionParams {
  AttentionGrid grid;
  AttentionOperand q, k, v, out;
  int32_t head_dim = 0;
  int32_t value_dim = 0;
  float scale_log2 = 1;     // |scale|·log2(e), positive and finite
  bool negate = false;      // q's sign: the scale is negative
  bool zero_scale = false;  // finite scores become 0, others NaN
  bool vector_out = false;  // two neighbours of a row may be stored as one
  bool async = false;       // mma: tiles are filled by cp.async
  float* parts = nullptr;   // [units, splits] of part_floats()

  // A part: a [tile_rows, value_pitch()], m [tile_rows], l [tile_rows].
  __host__ __device__ int64_t value_pitch() const { return (value_dim + 3) / 4 * 4; }
  __host__ __device__ int64_t part_floats() const { return grid.tile_rows * (value_pitch() + 2); }
  __host__ __device__ float* part(int64_t unit, int64_t split) const {
    return parts + (unit * grid.splits + split) * part_floats();
  }
  __host__ int64_t parts_bytes() const {
    return grid.splits > 1 ? grid.blocks() * part_floats() * 4 : 0;
  }
};

// exp((from - to)·scale): what sums at the maximum `from` are multiplied by when it grows to `to`.
// rescale_factor of ops/softmax/normalizer.h for scores that are not scaled yet. An empty sum (from
// = -inf) may be multiplied by anything finite.
__device__ inline float rescale(float from, float to, float scale_log2) {
  return from == to || from == kMinusInfinity ? 1.0f : exp2_approx((from - to) * scale_log2);
}

// What is subtracted from the scores: where all of them are -inf, their weights shall be
// exp(-inf - 0) = 0 and not exp(-inf + inf).
__device__ inline float shift_of(float max) { return max == kMinusInfinity ? 0.0f : max; }

template <class T>
__device__ T* row_of(const AttentionParams& p, const AttentionOperand& x, const AttentionBlock& b,
                     const AttentionRow& row) {
  return static_cast<T*>(x.data) + b.batch * x.stride_batch +
         (b.kv_head * p.grid.group + row.g) * x.stride_head + row.query * x.stride_row;
}

template <class T>
__device__ const T* head_of(const AttentionOperand& x, const AttentionBlock& b) {
  return static_cast<const T*>(x.data) + b.batch * x.stride_batch + b.kv_head * x.stride_head;
}

// What a row's sums are multiplied by in the end. A row that sees no key has sums of 0, and the
// result is 0; one that sees keys of score -inf only divides 0 by 0, as it should.
__device__ inline float inverse_sum(float row_sum, bool sees_keys) {
  return sees_keys ? 1.0f / row_sum : 0.0f;
}

// Columns [column, column + 2) of an output row.
template <class T>
__device__ inline void store_pair(const AttentionParams& p, T* row, int column, float x, float y) {
  if (p.vector_out && column + 1 < p.value_dim) {
    Vector<T, 2> pair;
    pair.at[0] = from_f32<T>(x);
    pair.at[1] = from_f32<T>(y);
    *reinterpret_cast<Vector<T, 2>*>(row + column) = pair;
    return;
  }
  if (column < p.value_dim) row[column * p.out.stride_inner] = from_f32<T>(x);
  if (column + 1 < p.value_dim) row[(column + 1) * p.out.stride_inner] = from_f32<T>(y);
}

// Where a finished row goes: to the output, or to the block's part.
template <class T>
struct RowSink {
  const AttentionParams& p;
  T* out = nullptr;
  float* part = nullptr;
  float inverse = 0;

  // Row `local` of the block with its m and l. Only the thread with `writes_sums` leaves those.
  __device__ RowSink(const AttentionParams& p, const AttentionBlock& b, int local,
                     const Normalizer& n, bool writes_sums)
      : p(p) {
    if (p.grid.splits > 1) {
      float* const base = p.part(b.unit, b.split);
      part = base + local * p.value_pitch();
      if (writes_sums) {
        float* const maxima = base + p.grid.tile_rows * p.value_pitch();
        maxima[local] = n.max;
        maxima[p.grid.tile_rows + local] = n.sum;
      }
    } else {
      const AttentionRow row = p.grid.row(b, static_cast<uint32_t>(local));
      inverse = inverse_sum(n.sum, p.grid.mask.visible_keys(row.query) > 0);
      out = row_of<T>(p, p.out, b, row);
    }
  }
  __device__ void store(int column, float x, float y) const {
    if (part == nullptr) {
      store_pair(p, out, column, x * inverse, y * inverse);
    } else if (column < p.value_dim) {  // its pitch is a multiple of 4
      *reinterpret_cast<float2*>(part + column) = make_float2(x, y);
    }
  }
};

constexpr int kMergeThreads = 128;
constexpr int kMaxColumns = static_cast<int>(kMaxHeadDim) / 32;  // of a lane

// Merges the parts of each row in order of their keys: a warp to a row, 32 parts at a time, a lane
// to a part for its factor and to every 32nd column for the sums.
template <class T>
__global__ void attention_merge(AttentionParams p, int64_t first_block) {
  const int64_t index =
      (first_block + blockIdx.x) * (kMergeThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t unit = index / p.grid.tile_rows;
  if (unit >= p.grid.units) return;
  const auto local = static_cast<int>(index - unit * p.grid.tile_rows);
  const AttentionBlock b = p.grid.block(unit * p.grid.splits);
  if (b.row_begin + local >= p.grid.rows) return;
  const int64_t pitch = p.value_pitch();
  const int64_t maxima = p.grid.tile_rows * pitch + local;
  const int64_t sums = maxima + p.grid.tile_rows;
  const auto splits = static_cast<int>(p.grid.splits);

  Normalizer all;
  for (int s = lane; s < splits; s += 32) all.max = fmaxf(all.max, p.part(unit, s)[maxima]);
#pragma unroll
  for (int i = 16; i > 0; i /= 2) all.max = fmaxf(all.max, __shfl_xor_sync(~0u, all.max, i));
  float acc[kMaxColumns] = {};
  for (int s0 = 0; s0 < splits; s0 += 32) {
    float factor = 0;
    float sum = 0;
    if (s0 + lane < splits) {
      const float* part = p.part(unit, s0 + lane);
      factor = rescale(part[maxima], all.max, p.scale_log2);
      sum = part[sums];
    }
    const int here = min(32, splits - s0);
#pragma unroll 4
    for (int j = 0; j < here; ++j) {
      const float f = __shfl_sync(~0u, factor, j);
      all.sum += f * __shfl_sync(~0u, sum, j);
      const float* row = p.part(unit, s0 + j) + local * pitch;
#pragma unroll
      for (int i = 0; i < kMaxColumns; ++i) {
        if (lane + 32 * i < p.value_dim) acc[i] += f * row[lane + 32 * i];
      }
    }
  }
  const AttentionRow row = p.grid.row(b, static_cast<uint32_t>(local));
  const float inverse = inverse_sum(all.sum, p.grid.mask.visible_keys(row.query) > 0);
  T* const out = row_of<T>(p, p.out, b, row);
#pragma unroll
  for (int i = 0; i < kMaxColumns; ++i) {
    const int column = lane + 32 * i;
    if (column < p.value_dim) out[column * p.out.stride_inner] = from_f32<T>(acc[i] * inverse);
  }
}

// ---- host ----

// The scale as the kernels take it. Very small and very large ones stay positive and finite, where
// differences of scores times them round to 0 and to infinity as they should.
inline void fold_scale(AttentionParams& p, double scale) {
  p.negate = scale < 0;
  p.zero_scale = scale == 0;
  if (p.zero_scale) return;
  constexpr double kLog2E = 1.4426950408889634;
  p.scale_log2 = static_cast<float>(std::clamp(
      std::abs(scale) * kLog2E, static_cast<double>(std::numeric_limits<float>::denorm_min()),
      static_cast<double>(std::numeric_limits<float>::max())));
}

inline AttentionParams attention_params(const Problem& problem, const AttentionGrid& grid,
                                        const Buffers& buffers) {
  const AttentionSizes sizes = attention_sizes(problem);
  const TensorDesc& out = problem.outputs[0];
  AttentionParams p;
  p.grid = grid;
  p.q = AttentionOperand(problem.inputs[0], buffers.inputs[0]);
  p.k = AttentionOperand(problem.inputs[1], buffers.inputs[1]);
  p.v = AttentionOperand(problem.inputs[2], buffers.inputs[2]);
  p.out = AttentionOperand(out, buffers.outputs[0]);
  p.head_dim = static_cast<int32_t>(sizes.head_dim);
  p.value_dim = static_cast<int32_t>(sizes.value_dim);
  fold_scale(p, sizes.scale);
  const int64_t strides = p.out.stride_batch | p.out.stride_head | p.out.stride_row;
  p.vector_out =
      p.out.stride_inner == 1 && strides % 2 == 0 && out.alignment_bytes >= 2 * size_of(out.dtype);
  p.parts = static_cast<float*>(buffers.workspace);
  return p;
}

inline bool rows_are_aligned(const TensorDesc& t) {
  return t.alignment_bytes >= 16 && AttentionOperand(t, nullptr).has_aligned_rows(size_of(t.dtype));
}

// Launches `blocks` blocks, in grids of at most 2^30.
template <class Launch>
void launch_in_grids(int64_t blocks, const Launch& launch) {
  constexpr int64_t kMost = int64_t{1} << 30;
  for (int64_t first = 0; first < blocks; first += kMost) {
    launch(first, static_cast<unsigned>(std::min(kMost, blocks - first)));
    check_launch();
  }
}

inline std::string describe(const AttentionGrid& grid) {
  return "tiles of " + std::to_string(grid.tile_rows) + " rows and " +
         std::to_string(grid.tile_keys) + " keys in " + std::to_string(grid.units) +
         " units, keys in " + std::to_string(grid.splits) +
         (grid.splits == 1 ? " part" : " parts, merged in order");
}

template <class T>
void launch_merge(const AttentionParams& p, cudaStream_t stream) {
  constexpr int64_t kRows = kMergeThreads / 32;
  launch_in_grids((p.grid.units * p.grid.tile_rows + kRows - 1) / kRows,
                  [&](int64_t first, unsigned blocks) {
                    attention_merge<T><<<blocks, kMergeThreads, 0, stream>>>(p, first);
                  });
}

}  // namespace
}  // namespace me
