// Y = act(X·W + b) for fp16 and bf16 on Hopper, for products with little to share: few rows of X,
// or few tiles. A cluster computes one tile of Y, each of its blocks over a part of K, so that the
// whole machine streams W. In each block one warp loads stages with the bulk tensor copy engine,
// and a warpgroup for every 64 columns of Y multiplies them with wgmma, which sees Y transposed: W
// has its 64 rows, X its 8 to 128 columns. The blocks then add their fp32 parts through the shared
// memory of the cluster, in the order of the parts, so that the sum does not depend on who came
// first.
//
// A constant W is loaded before the kernels in front have ended.
#include "ops/linear/cuda_sm90.cuh"

namespace me {
namespace {

// A tile has kWRows columns of Y and kXRows rows.
template <int kWRows_, int kXRows_>
struct Config {
  static constexpr int kWRows = kWRows_;
  static constexpr int kXRows = kXRows_;
  static constexpr int kWarpgroups = kWRows / 64;
  static constexpr int kThreads = kWarpgroups * 128 + 32;  // the last warp loads
  static constexpr int kWBytes = kWRows * kLineBytes;
  static constexpr int kStageBytes = (kWRows + kXRows) * kLineBytes;
  // Floats between rows of a part of the tile: accumulators go there without bank conflicts.
  static constexpr int kPitch = kWRows + 4;
  static constexpr int kPartBytes = kXRows * kPitch * 4;
};

// The ring, where a block's own part follows it; the other blocks' parts of its rows; barriers.
template <class C>
__host__ __device__ constexpr int ring_bytes(int stages) {
  return stages * C::kStageBytes > C::kPartBytes ? stages * C::kStageBytes : C::kPartBytes;
}
template <class C>
__host__ __device__ constexpr int received_bytes(int splits) {
  return splits > 1 ? C::kPartBytes : 0;
}
template <class C>
constexpr int shared_bytes(int stages, int splits) {
  return ring_bytes<C>(stages) + received_bytes<C>(splits) + ring_barrier_bytes(stages) + 8;
}

constexpr int kMostSplits = 8;  // blocks of a cluster, wherever the kernel runs

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

// Adds the parts of this block's rows in their order, finishes and stores them: a warp takes 128
// columns of one row of Y, or 64 of two. `own`: this block's part, all rows of the tile;
// `received`: by block, its part of this block's rows.
template <class C>
__device__ void store_sum(const Params& p, const float* own, const float* received, int rank,
                          int64_t m0, int64_t n0) {
  constexpr int kRunLanes = C::kWRows / 4;  // to a row, each with 4 columns
  constexpr int kStep = C::kWarpgroups * 128 / kRunLanes;
  const LinearEpilogue& e = p.epilogue;
  const int column = static_cast<int>(threadIdx.x) % kRunLanes * 4;
  const int count = static_cast<int>(min(int64_t{4}, p.n - n0 - column));
  if (count <= 0) return;
  float bias[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bias[i] = i < count ? bias_at(e, n0 + column + i) : 0.0f;
  const int share = C::kXRows / p.splits;
  const int first = rank * share;
  const int rows = static_cast<int>(min(int64_t{share}, p.m - m0 - first));
  for (int r = static_cast<int>(threadIdx.x) / kRunLanes; r < rows; r += kStep) {
    float4 parts[kMostSplits];
#pragma unroll
    for (int split = 0; split < kMostSplits; ++split) {
      if (split >= p.splits) continue;
      const float* const from = split == rank ? own + (first + r) * C::kPitch
                                              : received + (split * share + r) * C::kPitch;
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

template <class C, class T, bool kNMajor>
__global__ void __launch_bounds__(C::kThreads, 1)
    linear_sm90_split(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = shared_address(shared);
  uint8_t* const received = shared + ring_bytes<C>(p.stages);
  const RingBarriers barriers{shared_address(received) + received_bytes<C>(p.splits), p.stages};
  const uint32_t all_received = barriers.address + ring_barrier_bytes(p.stages);
  const uint32_t share_bytes = C::kPartBytes / p.splits;
  const int rank = static_cast<int>(blockIdx.x) % p.splits;
  const int index = static_cast<int>(blockIdx.x) / p.splits;
  const int m_tile = index % p.m_tiles;
  const int64_t m0 = int64_t{m_tile} * C::kXRows;
  const int64_t n0 = int64_t{index / p.m_tiles} * C::kWRows;
  const int first_step = static_cast<int>(int64_t{p.k_steps} * rank / p.splits);
  const int steps = static_cast<int>(int64_t{p.k_steps} * (rank + 1) / p.splits) - first_step;
  const int warpgroup = static_cast<int>(threadIdx.x / 128);

  if (threadIdx.x == 0) {
    tma_prefetch(&p.x);
    tma_prefetch(&p.w);
    barriers.init(C::kWarpgroups);
    mbarrier_init(all_received, 1);
    mbarrier_init_fence();
    mbarrier_expect(all_received, (p.splits - 1) * share_bytes);
  }
  __syncthreads();
  if (p.splits > 1) cluster_arrive();
  let_dependents_start();

  if (warpgroup == C::kWarpgroups) {
    if (threadIdx.x % 32 == 0) {
      const auto load_w = [&](int step, int stage) {
        mbarrier_expect(barriers.full(stage), C::kStageBytes);
        load_rows<C::kWRows, kNMajor>(ring + stage * C::kStageBytes, &p.w, static_cast<int>(n0),
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
        load_rows<C::kXRows, false>(ring + at.stage * C::kStageBytes + C::kWBytes, &p.x,
                                    static_cast<int>(m0), (first_step + step) * kBK,
                                    barriers.full(at.stage));
        at.advance(p.stages);
      }
    }
    __syncwarp();
    if (p.splits > 1) cluster_wait();
  } else {
    wait_for_dependencies();
    RingPosition at;
    float acc[1][C::kXRows / 2];
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      mbarrier_wait(barriers.full(at.stage), at.parity);
      const uint32_t stage = ring + at.stage * C::kStageBytes;
      multiply_stage<T, kNMajor>(acc, stage + warpgroup * kBoxBytes, stage + C::kWBytes, step > 0);
      if (step > 0) {
        wgmma_wait<1>();
        if (threadIdx.x % 128 == 0) mbarrier_arrive(barriers.empty(at.before(p.stages)));
      }
      at.advance(p.stages);
    }
    wgmma_wait<0>();
    named_barrier(1, C::kWarpgroups * 128);  // every stage has been read: the part may lie there
    float* const part = reinterpret_cast<float*>(shared);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int column = static_cast<int>(threadIdx.x / 32) * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < C::kXRows / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        part[(8 * j + lane % 4 * 2 + i % 2) * C::kPitch + column + i / 2 * 8] = acc[0][4 * j + i];
      }
    }
    if (p.splits > 1) {
      async_proxy_fence();
      cluster_wait();  // every block has made its barriers
    }
    named_barrier(1, C::kWarpgroups * 128);
    if (p.splits > 1) {
      const int to = static_cast<int>(threadIdx.x);
      if (to < p.splits && to != rank) {
        copy_to_block(shared_address(received) + rank * share_bytes, ring + to * share_bytes,
                      share_bytes, all_received, to);
      }
      mbarrier_wait(all_received, 0);
    }
    store_sum<C>(p, part, reinterpret_cast<const float*>(received), rank, m0, n0);
  }
  if (p.splits > 1) {  // a block's part has to stay until the others have it
    cluster_arrive();
    cluster_wait();
  }
}

// ---- host ----

struct TileInfo {
  std::string_view name;
  int bm, bn;
  int threads;
  int (*shared_bytes)(int stages, int splits);
};
template <class C>
constexpr TileInfo info_of(std::string_view name) {
  return {name, C::kXRows, C::kWRows, C::kThreads, shared_bytes<C>};
}

struct Choice {
  int tile = 0;  // index into kTiles
  int stages = 0;
  int splits = 1;
  double cost_us = 0;
};

#define ME_TILES(do)                                                                               \
  do                                                                                               \
  (64, 8) do(128, 8) do(64, 16) do(128, 16) do(128, 32) do(64, 64) do(128, 64) do(64, 128) do(128, \
                                                                                              128)
#define ME_INFO(w, x) info_of<Config<w, x>>(#x "x" #w "x64"),
constexpr TileInfo kTiles[] = {ME_TILES(ME_INFO)};
#undef ME_INFO

std::string to_string(const Choice& c) {
  return std::string(kTiles[c.tile].name) + ", " + std::to_string(c.stages) + " stages, K in " +
         std::to_string(c.splits) + (c.splits == 1 ? " part" : " parts");
}

// Waves of blocks, each as long as its steps along K, which the bytes of a stage, the arithmetic of
// narrow tiles or the latency of the ring bounds; at least the time of W from memory; and the sum
// of the parts. The constants are fitted to the times of all configurations over the bench's shapes
// (an H200; bf16, W as [N, K]).
double cost_of(const Problem& p, const Choice& c) {
  constexpr double kSharedBytesOfAll = 233472;  // of a multiprocessor; 1 KiB more to a block
  constexpr double kThreadsOfAll = 2048;
  const LinearSizes s = linear_sizes(p);
  const TileInfo& t = kTiles[c.tile];
  const double sms = std::max(1, p.device.multiprocessors);
  const double blocks = static_cast<double>(ceil_div(s.m, t.bm)) *
                        static_cast<double>(ceil_div(s.n, t.bn)) * c.splits;
  const double steps = static_cast<double>(ceil_div(ceil_div(s.k, kBK), c.splits));
  const double warpgroups = (t.threads + 127) / 128;
  const double resident = std::max(
      1.0, std::min(std::floor(kSharedBytesOfAll / (t.shared_bytes(c.stages, c.splits) + 1024)),
                    std::floor(kThreadsOfAll / (128 * warpgroups))));
  // Multiprocessors that clusters can use: those of one have to lie in one group of the machine's.
  const double reach = c.splits == 4 ? 124.0 / 132 : c.splits == 8 ? 128.0 / 132 : 1;
  const double usable = std::max(1.0, std::floor(sms * reach / c.splits)) * c.splits;
  const double waves = std::ceil(blocks / (usable * resident));
  const double share = std::min(resident, std::ceil(blocks / usable));
  const double area = static_cast<double>(t.bm) * t.bn;
  const double step_us = share * std::max(t.bn * kLineBytes / 53.5e3 + t.bm * kLineBytes / 87.2e3,
                                          area * kBK / 4.21e6);
  const double ring_us = 3.7 * (steps / c.stages - 1);
  const double w_us = static_cast<double>(s.n) * static_cast<double>(s.k) * 2 / 4.3e6;
  const double sum_us = 1.74 * share * waves * area / 8192 * (c.splits > 1 ? 1 : 0.5);
  return 2.54 + std::max(w_us, waves * std::max(steps * step_us, ring_us)) + sum_us;
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
            static_cast<double>(ceil_div(s.m, t.bm)) * ceil_div(s.n, t.bn) * splits;
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

template <class C, class T>
Kernel kernel_of(WMajor major) {
  return major == WMajor::kN ? linear_sm90_split<C, T, true> : linear_sm90_split<C, T, false>;
}
template <class T>
Kernel kernel_of(int tile, WMajor major) {
#define ME_KERNEL_OF(w, x) kernel_of<Config<w, x>, T>(major),
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
  params.w = w_map(p, buffers.inputs[1], tile.bn);
  params.epilogue = epilogue_of(p, buffers);
  params.m = s.m;
  params.n = s.n;
  params.m_tiles = static_cast<int>(ceil_div(s.m, tile.bm));
  params.n_tiles = static_cast<int>(ceil_div(s.n, tile.bn));
  params.k_steps = static_cast<int>(ceil_div(s.k, kBK));
  params.stages = c.stages;
  params.splits = c.splits;
  params.w_is_constant = p.inputs[1].constant;
  const WMajor major = *w_major(p);
  const Kernel kernel = p.inputs[0].dtype == DType::kF16 ? kernel_of<__half>(c.tile, major)
                                                         : kernel_of<__nv_bfloat16>(c.tile, major);
  const int bytes = tile.shared_bytes(c.stages, c.splits);
  const ClusterLaunch launch{static_cast<unsigned>(params.m_tiles * params.n_tiles * c.splits),
                             static_cast<unsigned>(tile.threads), static_cast<unsigned>(bytes),
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
