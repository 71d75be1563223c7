// What the Hopper kernels of linear share: a ring of stages in shared memory that the bulk
// tensor copy engine fills, or warps where it cannot, and warpgroups multiply out of, and the
// host's view of X, W and Y as tensor maps.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "ops/cuda/sm90.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/wgmma.cuh"
#include "ops/linear/cuda_operands.cuh"

namespace me {

// ---- a stage: kBK of K for the A and the B side of a tile ----

constexpr int kBoxBytes = 64 * kLineBytes;  // 64 lines, what a warpgroup or a box of W holds

// kRows rows at (row0, k0) of an operand into its place in a stage.
template <int kRows, bool kMnMajor>
__device__ inline void load_rows(uint32_t to, const CUtensorMap* map, int row0, int k0,
                                 uint32_t barrier) {
  if constexpr (kMnMajor) {
#pragma unroll
    for (int box = 0; box < kRows / 64; ++box) {
      tma_load(to + box * kBoxBytes, map, row0 + box * 64, k0, barrier);
    }
  } else {
    tma_load(to, map, k0, row0, barrier);
  }
}

// acc (+)= A·B over one stage, asynchronously: kBlocks times 64 rows at `a`, rows of B at `b`.
template <class T, bool kAMnMajor, int kBlocks, int kCount>
__device__ inline void multiply_stage(float (&acc)[kBlocks][kCount], uint32_t a, uint32_t b,
                                      bool accumulate) {
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kBK / 16; ++step) {
    const uint64_t b_at = wgmma_operand<false>(b + step * kWgmmaStepBytes<false>, kBoxBytes);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint64_t a_at = wgmma_operand<kAMnMajor>(
          a + block * kBoxBytes + step * kWgmmaStepBytes<kAMnMajor>, kBoxBytes);
      wgmma<T, kCount * 2, kAMnMajor, false>(acc[block], a_at, b_at, step > 0 || accumulate);
    }
  }
  wgmma_commit();
}

// ---- lines at any address, which the copy engine cannot take: threads bring them ----

// A matrix of 16-bit elements whose lines are contiguous and start anywhere.
struct Lines {
  const void* data = nullptr;  // nothing: the copy engine brings this matrix
  const void* end = nullptr;   // behind the last element in memory
  int64_t step = 0;            // elements between lines
  int count = 0;
  int length = 0;  // elements
};

constexpr int kGatherWarps = 8;
// A line of a stage on its way there: the chunks of 16 bytes that hold its 128.
constexpr int kRawChunks = kLineBytes / 16 + 1;
constexpr int kRawLineBytes = kRawChunks * 16;

// Which of a matrix's lines, and from which element on, is line i of a box of rows.
struct LineStart {
  int line, x;
};
template <bool kMnMajor>
__device__ inline LineStart line_start(int i, int row0, int k0) {
  return kMnMajor ? LineStart{k0 + i % 64, row0 + i / 64 * 64} : LineStart{row0 + i, k0};
}

// Starts to bring kRows rows at (row0, k0) to `raw`; each of the gathering warps the lines that it
// shifts later. Lines outside the matrix become zero; behind the end of a line comes what follows
// it in memory, or nothing.
template <int kRows, bool kMnMajor>
__device__ inline void fetch_raw_rows(int warp, uint32_t raw, const Lines& from, int row0, int k0) {
  const auto base = reinterpret_cast<uintptr_t>(from.data);
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x % 32); i < kRows / kGatherWarps * kRawChunks; i += 32) {
    const int line = i / kRawChunks * kGatherWarps + warp;
    const int chunk = i % kRawChunks;
    const LineStart start = line_start<kMnMajor>(line, row0, k0);
    const uintptr_t begin = base + (start.line * from.step + start.x) * 2;
    const uintptr_t at = (begin & ~uintptr_t{15}) + chunk * 16;
    const auto left = static_cast<int64_t>(reinterpret_cast<uintptr_t>(from.end) - at);
    const uint32_t to = raw + line * kRawLineBytes + chunk * 16;
    const bool inside = start.line < from.count && left > 0;
    if (inside && left < 16) {  // the last of the matrix, element by element
#pragma unroll 1
      for (int byte = 0; byte < left; byte += 2) {
        store_shared(to + byte, *reinterpret_cast<const uint16_t*>(at + byte));
      }
    } else {
      cp_async_16(to, reinterpret_cast<const void*>(at), inside);
    }
  }
}

// Those rows, arrived, into their place in a stage, with zeros behind the end of K. What lies
// behind the end of the rows only meets what is not stored.
template <int kRows, bool kMnMajor>
__device__ inline void shift_raw_rows(int warp, uint32_t to, uint32_t raw, const Lines& from,
                                      int row0, int k0) {
  constexpr int kBatch = 8;  // lines whose words are on the way together
  static_assert(kRows % (kGatherWarps * kBatch) == 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto base = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from.data) / 2);
  const int left = from.length - k0 - 2 * lane;
  const uint32_t kept = kMnMajor || left >= 2 ? ~0u : left == 1 ? 0xffffu : 0u;
#pragma unroll
  for (int first = warp; first < kRows; first += kGatherWarps * kBatch) {
    uint32_t words[kBatch][2];
    uint32_t skipped[kBatch];  // elements in front of the line's first
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int line = first + i * kGatherWarps;
      const LineStart start = line_start<kMnMajor>(line, row0, k0);
      skipped[i] = (base + static_cast<uint32_t>(start.line) * static_cast<uint32_t>(from.step) +
                    static_cast<uint32_t>(start.x)) %
                   8;
      const uint32_t at = raw + line * kRawLineBytes + (skipped[i] / 2 + lane) * 4;
      words[i][0] = load_shared(at);
      words[i][1] = load_shared(at + 4);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t word = __funnelshift_r(words[i][0], words[i][1], skipped[i] % 2 * 16);
      store_shared(to + swizzled(first + i * kGatherWarps, lane / 4) + lane % 4 * 4, word & kept);
    }
  }
}

// Where a thread is in the ring. Both sides walk it alike.
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;  // of the phase that ends when the stage is full

  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // The stage in front of this one.
  __device__ int before(int stages) const { return (stage == 0 ? stages : stage) - 1; }
  __device__ void advance(int stages, int steps) {
    stage += steps;
    parity ^= stage / stages & 1;
    stage %= stages;
  }
};

// The barriers of a ring: full ones, then empty ones.
struct RingBarriers {
  uint32_t address;
  int stages;

  __device__ uint32_t full(int stage) const { return address + stage * 8; }
  __device__ uint32_t empty(int stage) const { return address + (stages + stage) * 8; }
  // By one thread. `readers`: arrivals that free a stage; `writers`: that fill it.
  __device__ void init(uint32_t readers, uint32_t writers = 1) const {
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(full(i), writers);
      mbarrier_init(empty(i), readers);
    }
    mbarrier_init_fence();
  }
};
constexpr int ring_barrier_bytes(int stages) { return 2 * stages * 8; }

// ---- host: operands ----

enum class WMajor : uint8_t { kK, kN };

// Whether the copy engine can read a matrix whose rows are contiguous.
inline bool has_tensor_map(const TensorDesc& base, int64_t rows, int64_t columns, int64_t stride) {
  const int64_t bytes = stride * size_of(base.dtype);
  return base.alignment_bytes >= 16 &&
         (rows == 1 || (bytes % 16 == 0 && stride >= columns && bytes < int64_t{1} << 40));
}

// The axis along which W is contiguous: of two, the one along which the copy engine can read it.
inline std::optional<WMajor> w_major(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  const WeightStrides w = weight_strides(p);
  const bool along_k = w.k == 1 || s.k == 1;
  const bool along_n = w.n == 1 || s.n == 1;
  if (along_k && (!along_n || has_tensor_map(p.inputs[1], s.n, s.k, w.n))) return WMajor::kK;
  return along_n ? std::optional(WMajor::kN) : std::nullopt;
}

// Elements between rows whose leading dimensions are one axis; `columns` where there is one row.
inline int64_t row_step(const Rows& rows) {
  return rows.leading.shape.rank() == 0 ? rows.length : rows.leading.strides[0];
}

inline bool has_x_map(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  return has_tensor_map(p.inputs[0], s.m, s.k, row_step(rows_of(p.inputs[0])));
}
inline bool has_w_map(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  const WeightStrides w = weight_strides(p);
  return w_major(p) == WMajor::kK ? has_tensor_map(p.inputs[1], s.n, s.k, w.n)
                                  : has_tensor_map(p.inputs[1], s.k, s.n, w.k);
}

// Why X and W are no matrices with contiguous lines for wgmma; empty: they are. Y may lie anywhere.
inline std::string operand_refusal(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  if (p.device.compute_capability / 10 != 9) return "needs compute capability 9.x";
  if (p.inputs[0].dtype == DType::kF32) return "takes fp16 and bf16, found f32";
  if (s.m == 0 || s.n == 0 || s.k == 0) return "takes no empty dimension";
  constexpr int64_t kMost = int64_t{1} << 30;  // so that coordinates past the end fit in 32 bits
  if (s.m > kMost || s.n > kMost || s.k > kMost) return "a dimension is larger than 2^30";
  const Rows x = rows_of(p.inputs[0]);
  if (x.leading.shape.rank() > 1 || (x.stride != 1 && s.k > 1)) {
    return "wants rows of X that are contiguous and start one step apart";
  }
  return w_major(p) ? "" : "wants W contiguous along K or N";
}

inline Lines lines_of(const void* data, int64_t step, int64_t count, int64_t length) {
  const int64_t behind = std::max(step, int64_t{0}) * (count - 1) + length;
  return {data, static_cast<const uint16_t*>(data) + behind, step, static_cast<int>(count),
          static_cast<int>(length)};
}
inline Lines x_lines(const Problem& p, const void* data) {
  const LinearSizes s = linear_sizes(p);
  return lines_of(data, row_step(rows_of(p.inputs[0])), s.m, s.k);
}
inline Lines w_lines(const Problem& p, const void* data) {
  const LinearSizes s = linear_sizes(p);
  const WeightStrides w = weight_strides(p);
  return w_major(p) == WMajor::kK ? lines_of(data, w.n, s.n, s.k) : lines_of(data, w.k, s.k, s.n);
}

// `box_rows`: of X in a box.
inline CUtensorMap x_map(const Problem& p, const void* data, int box_rows) {
  const LinearSizes s = linear_sizes(p);
  return make_tensor_map(
      {data, p.inputs[0].dtype, s.m, s.k, row_step(rows_of(p.inputs[0])), box_rows});
}
// `box_rows`: of [N, K] in a box, where W is contiguous along K.
inline CUtensorMap w_map(const Problem& p, const void* data, int box_rows) {
  const LinearSizes s = linear_sizes(p);
  const WeightStrides w = weight_strides(p);
  const DType dtype = p.inputs[1].dtype;
  return w_major(p) == WMajor::kK ? make_tensor_map({data, dtype, s.n, s.k, w.n, box_rows})
                                  : make_tensor_map({data, dtype, s.k, s.n, w.k, kBK});
}

// Whether W and b may be read before the kernels in front have ended.
inline bool weights_are_constant(const Problem& p) {
  return std::all_of(p.inputs.begin() + 1, p.inputs.end(),
                     [](const TensorDesc& t) { return t.constant; });
}

// ---- host ----

template <class Params>
std::unique_ptr<PreparedOp> prepare_overlapping(void (*kernel)(Params), const ClusterLaunch& launch,
                                                const Params& params) {
  allow_shared_bytes(kernel, launch.shared_bytes);
  load_kernel(kernel);
  return make_prepared(
      [=](void* stream) { launch_overlapping(kernel, launch, as_cuda_stream(stream), params); });
}

}  // namespace me
