// Y = act(X·W + b) for fp16 and bf16 on Hopper, for products with little to share: few rows of X,
// or few tiles. A cluster computes one tile of Y, each of its blocks over a part of K, so that the
// whole machine streams W. In each block one warp loads stages with the bulk tensor copy engine,
// and a warpgroup multiplies them with wgmma, which sees Y transposed: W has its 64 rows, X its 8
// to 128 columns. The blocks then add their fp32 parts through the shared memory of the cluster, in
// the order of the parts, so that the sum does not depend on who came first.
//
// A constant W is loaded before the kernels in front have ended. Where two blocks share a
// multiprocessor, those of the next kernel bring theirs while these finish, so that memory does not
// rest: they are let in when little is left to load, because before that they would only compete.
#include "ops/linear/cuda_sm90.cuh"

namespace me {
namespace {

constexpr int kWRows = 64;  // of a tile: columns of Y
constexpr int kWBytes = kWRows * kLineBytes;
constexpr int kMultipliers = 128;            // threads
constexpr int kThreads = kMultipliers + 32;  // the last warp loads
constexpr int kMostSplits = 8;               // blocks of a cluster, wherever the kernel runs
constexpr int kStepsLeft = 3;                // to load when the next kernel is let in
// Floats between rows of a part of a tile: accumulators go there without bank conflicts.
constexpr int kPitch = kWRows + 4;

template <int kXRows>
constexpr int kStageBytes = (kWRows + kXRows) * kLineBytes;
template <int kXRows>
constexpr int kPartBytes = kXRows* kPitch * 4;

// The ring, where a block's own part follows it, and behind that the other blocks' parts of its
// rows; barriers.
template <int kXRows>
__host__ __device__ constexpr int ring_bytes(int stages, int splits) {
  const int parts = (splits > 1 ? 2 : 1) * kPartBytes<kXRows>;
  return stages * kStageBytes<kXRows> > parts ? stages * kStageBytes<kXRows> : parts;
}
template <int kXRows>
constexpr int shared_bytes(int stages, int splits) {
  return ring_bytes<kXRows>(stages, splits) + ring_barrier_bytes(stages) + 8;
}

struct Params {
  CUtensorMap x, w;
  LinearEpilogue epilogue;
  int64_t m, n;
  int m_tiles, n_tiles;
  int k_steps;
  int stages;
  int splits;          // parts of K: the blocks of a cluster
  bool w_is_constant;  // W may be read before the kernels in front have ended
};

// Adds the parts of this block's rows in their order, finishes and stores them: a warp takes two
// rows of Y at a time. `own`: this block's part, all rows of the tile; `received`: by block, its
// part of this block's rows.
template <int kXRows>
__device__ void store_sum(const Params& p, const float* own, const float* received, int rank,
                          int64_t m0, int64_t n0) {
  constexpr int kRunLanes = kWRows / 4;  // to a row, each with 4 columns
  constexpr int kStep = kMultipliers / kRunLanes;
  const LinearEpilogue& e = p.epilogue;
  const int column = static_cast<int>(threadIdx.x) % kRunLanes * 4;
  const int count = static_cast<int>(min(int64_t{4}, p.n - n0 - column));
  if (count <= 0) return;
  float bias[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bias[i] = i < count ? bias_at(e, n0 + column + i) : 0.0f;
  const int share = kXRows / p.splits;
  const int first = rank * share;
  const int rows = static_cast<int>(min(int64_t{share}, p.m - m0 - first));
  for (int r = static_cast<int>(threadIdx.x) / kRunLanes; r < rows; r += kStep) {
    float4 parts[kMostSplits];
#pragma unroll
    for (int split = 0; split < kMostSplits; ++split) {
      if (split >= p.splits) continue;
      const float* const from =
          split == rank ? own + (first + r) * kPitch : received + (split * share + r) * kPitch;
      parts[split] = *reinterpret_cast<const float4*>(from + column);
    }
    float sum[4] = {parts[0].x, parts[0].y, parts[0].z, parts[0].w};
#pragma unroll
    for (int split = 1; split < kMostSplits; ++split) {
      if (split >= p.splits) continue;
      sum[0] += parts[split].x, sum[1] += parts[split].y;
      sum[2] += parts[split].z, sum[3] += parts[split].w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = finish(e, sum[i], bias[i]);
    store_values(e, e.y, e.rows.offset(m0 + first + r) + (n0 + column) * e.rows.stride, sum, count);
  }
}

template <int kXRows, class T, bool kNMajor>
__global__ void __launch_bounds__(kThreads, 1) linear_sm90_split(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = shared_address(shared);
  float* const part = reinterpret_cast<float*>(shared);
  const float* const received = part + kXRows * kPitch;
  const RingBarriers barriers{ring + ring_bytes<kXRows>(p.stages, p.splits), p.stages};
  const uint32_t all_received = barriers.address + ring_barrier_bytes(p.stages);
  const uint32_t share_bytes = kPartBytes<kXRows> / p.splits;
  const int rank = static_cast<int>(blockIdx.x) % p.splits;
  const int index = static_cast<int>(blockIdx.x) / p.splits;
  const int m_tile = index % p.m_tiles;
  const int64_t m0 = int64_t{m_tile} * kXRows;
  const int64_t n0 = int64_t{index / p.m_tiles} * kWRows;
  const int first_step = static_cast<int>(int64_t{p.k_steps} * rank / p.splits);
  const int steps = static_cast<int>(int64_t{p.k_steps} * (rank + 1) / p.splits) - first_step;

  if (threadIdx.x == 0) {
    tma_prefetch(&p.x);
    tma_prefetch(&p.w);
    barriers.init(1);
    mbarrier_init(all_received, 1);
    mbarrier_init_fence();
    mbarrier_expect(all_received, (p.splits - 1) * share_bytes);
  }
  __syncthreads();

  if (threadIdx.x >= kMultipliers) {
    if (threadIdx.x % 32 == 0) {
      const auto load_w = [&](int step, int stage) {
        mbarrier_expect(barriers.full(stage), kStageBytes<kXRows>);
        load_rows<kWRows, kNMajor>(ring + stage * kStageBytes<kXRows>, &p.w, static_cast<int>(n0),
                                   (first_step + step) * kBK, barriers.full(stage));
      };
      const int ahead = p.w_is_constant ? min(steps, p.stages) : 0;
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
    __syncwarp();
    if (p.splits > 1) {
      cluster_arrive();
      cluster_wait();
    }
  } else {
    wait_for_dependencies();
    RingPosition at;
    float acc[1][kXRows / 2];
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
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
    if (p.splits > 1) cluster_arrive();  // the others' parts may come
    named_barrier(1, kMultipliers);      // every stage has been read: the part may lie there
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int column = static_cast<int>(threadIdx.x / 32) * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kXRows / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        part[(8 * j + lane % 4 * 2 + i % 2) * kPitch + column + i / 2 * 8] = acc[0][4 * j + i];
      }
    }
    if (p.splits > 1) {
      async_proxy_fence();
      cluster_wait();  // every block has made its barriers and read its stages
    }
    named_barrier(1, kMultipliers);
    if (p.splits > 1) {
      const int to = static_cast<int>(threadIdx.x);
      if (to < p.splits && to != rank) {
        copy_to_block(shared_address(received) + rank * share_bytes, ring + to * share_bytes,
                      share_bytes, all_received, to);
      }
      mbarrier_wait(all_received, 0);
    }
    store_sum<kXRows>(p, part, received, rank, m0, n0);
  }
  if (p.splits > 1) {  // a block's part has to stay until the others have it
    cluster_arrive();
    cluster_wait();
  }
}

// ---- host ----

struct TileInfo {
  int bm;
  int (*shared_bytes)(int stages, int splits);
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
// share a multiprocessor each further one costs about half of the first; where all of the next
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
      std::max(1.0, std::floor(kSharedBytesOfAll / (t.shared_bytes(c.stages, c.splits) + 1024)));
  // Multiprocessors that clusters can use: those of one have to lie in one group of the machine's.
  const double reach = c.splits == 4 ? 124.0 / 132 : c.splits == 8 ? 128.0 / 132 : 1;
  const double usable = std::max(1.0, std::floor(sms * reach / c.splits)) * c.splits;
  const double waves = std::ceil(blocks / (usable * resident));
  const double share = 1 + 0.486 * (std::clamp(blocks / usable, 1.0, resident) - 1);
  const double step_us = share * (kWBytes / 46.4e3 + t.bm * kLineBytes / 147e3);
  const double ring_us = 1.76 * (steps / c.stages - 1);
  const double w_us = static_cast<double>(s.n) * static_cast<double>(s.k) * 2 / 4.3e6;
  const double sum_us = share * waves * (t.bm / 64.0) * (c.splits > 1 ? 1.28 : 0.64);
  const double start_us = 2 * blocks <= usable * resident ? 2.43 : 3.31;
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
        while (stages > 1 && t.shared_bytes(stages, splits) > budget) --stages;
        if (t.shared_bytes(stages, splits) > budget || stages == last) continue;
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
  return refusal.empty() ? support_of(p, choices(p)) : Support::no(refusal);
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
  params.m_tiles = static_cast<int>(ceil_div(s.m, tile.bm));
  params.n_tiles = static_cast<int>(ceil_div(s.n, kWRows));
  params.k_steps = static_cast<int>(ceil_div(s.k, kBK));
  params.stages = c.stages;
  params.splits = c.splits;
  params.w_is_constant = p.inputs[1].constant;
  const WMajor major = *w_major(p);
  const Kernel kernel = p.inputs[0].dtype == DType::kF16 ? kernel_of<__half>(c.tile, major)
                                                         : kernel_of<__nv_bfloat16>(c.tile, major);
  const int bytes = tile.shared_bytes(c.stages, c.splits);
  const ClusterLaunch launch{static_cast<unsigned>(params.m_tiles * params.n_tiles * c.splits),
                             kThreads, static_cast<unsigned>(bytes),
                             static_cast<unsigned>(c.splits)};
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
