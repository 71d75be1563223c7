// Y = act(X·W + b) for fp16 and bf16 on Hopper, for products with little to share: few rows of X,
// or few tiles. A cluster computes one tile of Y, each of its blocks over a part of K, so that the
// whole machine streams W. In each block one warp loads stages with the bulk tensor copy engine,
// and a warpgroup multiplies them with wgmma, which sees Y transposed: W has its 64 rows, X its 8
// to 128 columns. The blocks then send each other their fp32 parts out of the registers, each block
// adds those of its share of the tile, in the order of the parts, so that the sum does not depend
// on who came first, and stores it.
//
// W and b, where both are constant, are loaded before the kernels in front have ended. Where two
// blocks share a multiprocessor, those of the next kernel bring theirs while these finish, so that
// memory does not rest: they are let in when little is left to load, because before that they would
// only compete.
#include <bit>

#include "ops/linear/cuda_sm90.cuh"
#include "ops/linear/split_parts.h"

namespace me {
namespace {

constexpr int kWRows = 64;  // of a tile: columns of Y
constexpr int kWBytes = kWRows * kLineBytes;
constexpr int kMultipliers = 128;            // threads
constexpr int kThreads = kMultipliers + 32;  // the last warp loads
constexpr int kMostSplits = 8;               // blocks of a cluster, wherever the kernel runs
constexpr int kStepsLeft = 3;                // to load when the next kernel is let in

template <int kXRows>
constexpr int kStageBytes = (kWRows + kXRows) * kLineBytes;

// A tile's sums in quads, as a thread of the product has them: rows of Y 8j + 2·(lane % 4) and the
// next, columns 16·warp + lane / 4 and 8 further. Quad j of thread t is number j·kMultipliers + t.
// Each block of the cluster adds as many quads as the others, neighbours: its share.
template <int kXRows>
constexpr int kQuads = kXRows / 8 * kMultipliers;
constexpr int kQuadBytes = 4 * sizeof(float);
template <int kXRows>
constexpr int kPartBytes = kQuads<kXRows>* kQuadBytes;

// Stages, which a block's share of all parts follows in the same place; barriers.
template <int kXRows>
__host__ __device__ constexpr int ring_bytes(int stages) {
  const int bytes = stages * kStageBytes<kXRows>;
  return bytes > kPartBytes<kXRows> ? bytes : kPartBytes<kXRows>;
}
template <int kXRows>
constexpr int shared_bytes(int stages) {
  static_assert(kPartBytes<kXRows> <= kPartStages * kStageBytes<kXRows>);
  return ring_bytes<kXRows>(stages) + ring_barrier_bytes(stages) + 8;
}

struct Params {
  CUtensorMap x, w;
  LinearEpilogue epilogue;
  int64_t m, n;
  int k_steps;
  int stages;
  int splits, split_bits;     // parts of K: the blocks of a cluster; the power of two that they are
  int parts_stage;            // where the parts are added, in every block
  bool weights_are_constant;  // W and b may be read before the kernels in front have ended
};

// Adds the parts of this block's share in their order, finishes and stores it. `parts`: by block,
// its part of the share; `bias`: of the columns of the thread's quads. By all multipliers.
template <class Y>
__device__ void store_sum(const Params& p, const float4* parts, const float (&bias)[2], int rank,
                          int share, int64_t m0, int64_t n0) {
  const LinearEpilogue& e = p.epilogue;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Lanes exchange values, so that each stores four neighbouring columns of one row.
  const bool odd = lane & 4;   // has the second of two rows
  const bool high = lane & 8;  // has the columns 8 further
  const int64_t column = n0 + threadIdx.x / 32 * 16 + (high ? 8 : 0) + lane / 16 * 4;
  const int count = static_cast<int>(min(int64_t{4}, p.n - column));
  const int first = rank * share;
  for (int j = first / kMultipliers; j * kMultipliers < first + share; ++j) {
    const int quad = j * kMultipliers + static_cast<int>(threadIdx.x) - first;
    const bool mine = quad >= 0 && quad < share;
    float4 sum = {};
    if (mine) {
      sum = parts[quad];
#pragma unroll
      for (int split = 1; split < kMostSplits; ++split) {
        if (split >= p.splits) continue;
        const float4 part = parts[split * share + quad];
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
      }
    }
    const float values[2][2] = {{finish(e, sum.x, bias[0]), finish(e, sum.y, bias[0])},
                                {finish(e, sum.z, bias[1]), finish(e, sum.w, bias[1])}};
    float two[2][2];  // columns 8 apart, neighbours
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float other = __shfl_xor_sync(~0u, odd ? values[h][0] : values[h][1], 4);
      two[h][0] = odd ? other : values[h][0];
      two[h][1] = odd ? values[h][1] : other;
    }
    float four[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float other = __shfl_xor_sync(~0u, high ? two[0][i] : two[1][i], 8);
      four[i] = high ? other : two[0][i];
      four[2 + i] = high ? two[1][i] : other;
    }
    const int64_t row = m0 + 8 * j + lane % 4 * 2 + (odd ? 1 : 0);
    if (mine && row < p.m && count > 0) {
      store_values_as(static_cast<Y*>(e.y) + e.rows.offset(row) + column * e.rows.stride,
                      e.rows.stride, e.wide, four, count);
    }
  }
}

template <int kXRows, class T, bool kNMajor>
__global__ void __launch_bounds__(kThreads, 1) linear_sm90_split(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = shared_address(shared);
  const RingBarriers barriers{ring + ring_bytes<kXRows>(p.stages), p.stages};
  const uint32_t all_received = barriers.address + ring_barrier_bytes(p.stages);
  const int share = kQuads<kXRows> >> p.split_bits;
  const int rank = static_cast<int>(blockIdx.x);
  const int64_t m0 = int64_t{blockIdx.y} * kXRows;
  const int64_t n0 = int64_t{blockIdx.z} * kWRows;
  const int first_step = first_step_of(p.k_steps, rank, p.split_bits);
  const int steps = first_step_of(p.k_steps, rank + 1, p.split_bits) - first_step;
  uint8_t* const parts = shared + p.parts_stage * kStageBytes<kXRows>;
  const int parts_may_come = step_parts_may_come(steps, p.stages);

  if (threadIdx.x == 0) {
    tma_prefetch(&p.x);
    tma_prefetch(&p.w);
    barriers.init(1);
    mbarrier_init(all_received, 1);
    mbarrier_init_fence();
    mbarrier_expect(all_received, (p.splits - 1) * share * kQuadBytes);
  }
  __syncthreads();

  if (threadIdx.x >= kMultipliers) {
    if (threadIdx.x % 32 == 0) {
      const auto load_w = [&](int step, int stage) {
        mbarrier_expect(barriers.full(stage), kStageBytes<kXRows>);
        load_rows<kWRows, kNMajor>(ring + stage * kStageBytes<kXRows>, &p.w, static_cast<int>(n0),
                                   (first_step + step) * kBK, barriers.full(stage));
      };
      const int ahead = p.weights_are_constant ? min(steps, p.stages) : 0;
      for (int step = 0; step < ahead; ++step) load_w(step, step);
      wait_for_dependencies();
      RingPosition at;
#pragma unroll 1
      for (int step = 0; step < steps; ++step) {
        if (step >= ahead) {
          mbarrier_wait(barriers.empty(at.stage), at.parity ^ 1);
          load_w(step, at.stage);
        }
        load_rows<kXRows, false>(ring + at.stage * kStageBytes<kXRows> + kWBytes, &p.x,
                                 static_cast<int>(m0), (first_step + step) * kBK,
                                 barriers.full(at.stage));
        if (step == max(0, steps - 1 - kStepsLeft)) let_dependents_start();
        at.advance(p.stages);
      }
    }
  } else {
    if (!p.weights_are_constant) wait_for_dependencies();
    float bias[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t column = n0 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h;
      bias[h] = column < p.n ? bias_at(p.epilogue, column) : 0.0f;
    }
    wait_for_dependencies();
    RingPosition at;
    float acc[1][kXRows / 2];
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (step == parts_may_come) cluster_arrive();
      mbarrier_wait(barriers.full(at.stage), at.parity);
      const uint32_t stage = ring + at.stage * kStageBytes<kXRows>;
      multiply_stage<T, kNMajor>(acc, stage, stage + kWBytes, step > 0);
      if (step > 0) {
        wgmma_wait<1>();
        if (threadIdx.x == 0) mbarrier_arrive(barriers.empty(at.before(p.stages)));
      }
      at.advance(p.stages);
    }
    wgmma_wait<0>();
    if (parts_may_come == steps) cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int j = 0; j < kXRows / 8; ++j) {
      const float4 part = {acc[0][4 * j], acc[0][4 * j + 1], acc[0][4 * j + 2], acc[0][4 * j + 3]};
      const int quad = j * kMultipliers + static_cast<int>(threadIdx.x);
      const int to = (quad << p.split_bits) / kQuads<kXRows>;
      const uint32_t at = (rank * share + quad - to * share) * kQuadBytes;
      if (to == rank) {
        *reinterpret_cast<float4*>(parts + at) = part;
      } else {
        store_to_block(shared_address(parts) + at, part, all_received, to);
      }
    }
    if (p.splits > 1) mbarrier_wait(all_received, 0);
    const auto* const from = reinterpret_cast<const float4*>(parts);
    if (p.epilogue.dtype == DType::kF32) {
      store_sum<float>(p, from, bias, rank, share, m0, n0);
    } else if (p.epilogue.dtype == DType::kF16) {
      store_sum<__half>(p, from, bias, rank, share, m0, n0);
    } else {
      store_sum<__nv_bfloat16>(p, from, bias, rank, share, m0, n0);
    }
  }
}

// ---- host ----

struct TileInfo {
  int bm;
  int (*shared_bytes)(int stages);
};

struct Choice {
  int tile = 0;  // index into kTiles
  int stages = 0;
  int splits = 1;
  double cost_us = 0;
};

#define ME_TILES(do) \
  do (8) do(16) do(32) do(64) do(128)
#define ME_INFO(x) {x, shared_bytes<x>},
constexpr TileInfo kTiles[] = {ME_TILES(ME_INFO)};
#undef ME_INFO

std::string to_string(const Choice& c) {
  return std::to_string(kTiles[c.tile].bm) + "x64x64, " + std::to_string(c.stages) +
         " stages, K in " + std::to_string(c.splits) + (c.splits == 1 ? " part" : " parts");
}

// Waves of blocks, each as long as its steps along K, which the bytes of a stage or the latency of
// the ring bounds; at least the time of W from memory; and the sum of the parts. Of blocks that
// share a multiprocessor each further one costs two fifths of the first; where all of the next
// kernel's fit beside these, its start is hidden. The constants are fitted to the times of all
// configurations over the bench's shapes (an H200; bf16, both layouts), which the picks are tested
// against.
double cost_of(const Problem& p, const Choice& c) {
  constexpr double kSharedBytesOfAll = 233472;  // of a multiprocessor; 1 KiB more to a block
  const LinearSizes s = linear_sizes(p);
  const TileInfo& t = kTiles[c.tile];
  const double sms = std::max(1, p.device.multiprocessors);
  const double blocks = static_cast<double>(ceil_div(s.m, t.bm)) *
                        static_cast<double>(ceil_div(s.n, kWRows)) * c.splits;
  const double steps = static_cast<double>(ceil_div(ceil_div(s.k, kBK), c.splits));
  const double resident =
      std::max(1.0, std::floor(kSharedBytesOfAll / (t.shared_bytes(c.stages) + 1024)));
  // Multiprocessors that clusters can use: those of one have to lie in one group of the machine's.
  const double reach = c.splits >= 4 ? 120.0 / 132 : 1;
  const double usable = std::max(1.0, std::floor(sms * reach / c.splits)) * c.splits;
  const double waves = std::ceil(blocks / (usable * resident));
  const double share = 1 + 0.393 * (std::clamp(blocks / usable, 1.0, resident) - 1);
  const double step_us = share * (kWBytes / 45.6e3 + t.bm * kLineBytes / 173e3);
  const double ring_us = 1.64 * (steps / c.stages - 1);
  const double w_us = static_cast<double>(s.n) * static_cast<double>(s.k) * 2 / 4.3e6;
  const double sum_us = share * waves * (t.bm / 64.0) * (c.splits > 1 ? 1.32 : 1.72);
  const double start_us = 2 * blocks <= usable * resident ? 1.86 : 3.15;
  return start_us + std::max(w_us, waves * std::max(steps * step_us, ring_us)) + sum_us;
}

// Cheapest first.
std::vector<Choice> choices(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  const int64_t k_steps = ceil_div(s.k, kBK);
  std::vector<Choice> all;
  for (int tile = 0; tile < static_cast<int>(std::size(kTiles)); ++tile) {
    const TileInfo& t = kTiles[tile];
    if (t.bm >= 2 * s.m && t.bm > 8) continue;
    for (int splits : {1, 2, 4, 8}) {
      if (splits > k_steps) break;
      int last = 0;
      for (int64_t budget : {p.device.shared_bytes / 2 - 1024, p.device.shared_bytes}) {
        int stages = static_cast<int>(std::min<int64_t>(ceil_div(k_steps, splits), 16));
        while (stages > 1 && t.shared_bytes(stages) > budget) --stages;
        if (t.shared_bytes(stages) > budget || stages == last) continue;
        last = stages;
        Choice c{tile, stages, splits};
        const double blocks =
            static_cast<double>(ceil_div(s.m, t.bm)) * ceil_div(s.n, kWRows) * splits;
        if (blocks > 8 * p.device.multiprocessors) continue;
        c.cost_us = cost_of(p, c);
        all.push_back(c);
      }
    }
  }
  sort_by_cost(all);
  return all;
}

std::vector<KernelConfig> configs(const Problem& p) { return configs_of(choices(p)); }

Support supports(const Problem& p) {
  std::string refusal = operand_refusal(p);
  if (refusal.empty() && !(has_x_map(p) && has_w_map(p))) {
    refusal = "wants rows of X and W that start at multiples of 16 bytes";
  }
  return refusal.empty() ? support_of(p, choices(p), "wgmma") : Support::no(refusal);
}

using Kernel = void (*)(Params);

template <int kXRows, class T>
Kernel kernel_of(WMajor major) {
  return major == WMajor::kN ? linear_sm90_split<kXRows, T, true>
                             : linear_sm90_split<kXRows, T, false>;
}
template <class T>
Kernel kernel_of(int tile, WMajor major) {
#define ME_KERNEL_OF(x) kernel_of<x, T>(major),
  const Kernel kernels[] = {ME_TILES(ME_KERNEL_OF)};
#undef ME_KERNEL_OF
  return kernels[tile];
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  const Choice c = *choose(p, choices(p));
  const TileInfo& tile = kTiles[c.tile];
  const LinearSizes s = linear_sizes(p);
  Params params;
  params.x = x_map(p, buffers.inputs[0], tile.bm);
  params.w = w_map(p, buffers.inputs[1], kWRows);
  params.epilogue = epilogue_of(p, buffers);
  params.m = s.m;
  params.n = s.n;
  params.k_steps = static_cast<int>(ceil_div(s.k, kBK));
  params.stages = c.stages;
  params.splits = c.splits;
  params.split_bits = std::countr_zero(static_cast<unsigned>(c.splits));
  params.parts_stage = parts_stage(params.k_steps, params.split_bits, params.stages);
  params.weights_are_constant = weights_are_constant(p);
  const WMajor major = *w_major(p);
  const Kernel kernel = p.inputs[0].dtype == DType::kF16 ? kernel_of<__half>(c.tile, major)
                                                         : kernel_of<__nv_bfloat16>(c.tile, major);
  const int bytes = tile.shared_bytes(c.stages);
  const auto count = [](int64_t tiles) { return static_cast<unsigned>(tiles); };
  const ClusterLaunch launch{
      {count(c.splits), count(ceil_div(s.m, tile.bm)), count(ceil_div(s.n, kWRows))},
      kThreads,
      static_cast<unsigned>(bytes),
      count(c.splits)};
  return prepare_overlapping(kernel, launch, params);
}

}  // namespace

extern const KernelEntry linear_cuda_sm90_split;
const KernelEntry linear_cuda_sm90_split = {
    .op = "linear",
    .name = "linear_cuda_sm90_split",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .prepare = prepare,
};

}  // namespace me
