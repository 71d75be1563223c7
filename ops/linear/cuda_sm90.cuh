// What the Hopper kernels of linear share: a ring of stages in shared memory that one warp fills
// through the bulk tensor copy engine and warpgroups multiply out of, and the host's view of X, W
// and Y as tensor maps.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

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
  // By one thread. `readers`: arrivals that free a stage.
  __device__ void init(uint32_t readers) const {
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(full(i), 1);
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

// The axis along which W is read; nothing where the copy engine can read it along neither.
inline std::optional<WMajor> w_major(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  const WeightStrides w = weight_strides(p);
  const TensorDesc& desc = p.inputs[1];
  if ((w.k == 1 || s.k == 1) && has_tensor_map(desc, s.n, s.k, w.n)) return WMajor::kK;
  if ((w.n == 1 || s.n == 1) && has_tensor_map(desc, s.k, s.n, w.k)) return WMajor::kN;
  return std::nullopt;
}

// Elements between rows whose leading dimensions are one axis; `columns` where there is one row.
inline int64_t row_step(const Rows& rows) {
  return rows.leading.shape.rank() == 0 ? rows.length : rows.leading.strides[0];
}

// Why the copy engine cannot read X and W; empty: it can. Y may lie anywhere.
inline std::string tensor_map_refusal(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  if (p.device.compute_capability / 10 != 9) return "needs compute capability 9.x";
  if (p.inputs[0].dtype == DType::kF32) return "takes fp16 and bf16, found f32";
  if (s.m == 0 || s.n == 0 || s.k == 0) return "takes no empty dimension";
  constexpr int64_t kMost = int64_t{1} << 30;  // so that coordinates past the end fit in 32 bits
  if (s.m > kMost || s.n > kMost || s.k > kMost) return "a dimension is larger than 2^30";
  const Rows x = rows_of(p.inputs[0]);
  if (x.leading.shape.rank() > 1 || (x.stride != 1 && s.k > 1) ||
      !has_tensor_map(p.inputs[0], s.m, s.k, row_step(x))) {
    return "wants rows of X that are contiguous and start at multiples of 16 bytes, one step apart";
  }
  return w_major(p) ? "" : "wants rows of W that start at multiples of 16 bytes";
}

// These require that there is no refusal. `box_rows`: of X in a box.
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

// ---- host: the choice among configurations, each a Choice with cost_us and to_string() ----

template <class Choice>
void sort_by_cost(std::vector<Choice>& choices) {
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return a.cost_us < b.cost_us; });
}

// The problem's configuration, or the cheapest where it names none.
template <class Choice>
std::optional<Choice> choose(const Problem& p, const std::vector<Choice>& cheapest_first) {
  for (const Choice& c : cheapest_first) {
    if (p.config.empty() || to_string(c) == p.config) return c;
  }
  return std::nullopt;
}

template <class Choice>
std::vector<KernelConfig> configs_of(const std::vector<Choice>& cheapest_first) {
  std::vector<KernelConfig> all;
  for (const Choice& c : cheapest_first) all.push_back({to_string(c), c.cost_us});
  return all;
}

template <class Choice>
Support support_of(const Problem& p, const std::vector<Choice>& cheapest_first) {
  const auto choice = choose(p, cheapest_first);
  if (choice) return Support::yes(choice->cost_us, "wgmma, " + to_string(*choice));
  return Support::no(p.config.empty() ? "no tiling of it fits the device"
                                      : "has no configuration " + p.config);
}

template <class Params>
std::unique_ptr<PreparedOp> prepare_overlapping(void (*kernel)(Params), const ClusterLaunch& launch,
                                                const Params& params) {
  allow_shared_bytes(kernel, launch.shared_bytes);
  load_kernel(kernel);
  return make_prepared(
      [=](void* stream) { launch_overlapping(kernel, launch, as_cuda_stream(stream), params); });
}

}  // namespace me
