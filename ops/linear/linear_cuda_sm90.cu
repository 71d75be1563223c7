// Y = act(X·W + b) for fp16 and bf16 on Hopper, for products large enough to fill the machine.
// Clusters of one or two blocks walk over the output tiles. In each block one warp loads stages of
// X and W with the bulk tensor copy engine (the blocks of a cluster have the same columns, and each
// loads its part of W for both), and a warpgroup for every 64 rows multiplies them with wgmma.
// Warpgroups do not wait for each other, so that one multiplies while the other stores. Results go
// through shared memory, 128 bytes of 64 rows at a time.
//
// Leading dimensions that the copy engine cannot take are refused; Y may have any.
#include <algorithm>

#include "ops/linear/cuda_sm90.cuh"

namespace me {
namespace {

template <int kBm_, int kBn_>
struct Config {
  static constexpr int kBm = kBm_;
  static constexpr int kBn = kBn_;
  static constexpr int kWarpgroups = kBm / 64;
  static constexpr int kThreads = (kWarpgroups + 1) * 128;  // the last warpgroup loads
  static constexpr int kABytes = kBm * kLineBytes;
  static constexpr int kStageBytes = (kBm + kBn) * kLineBytes;
};
// Registers of a thread that loads, and of one that multiplies where two warpgroups do: together
// all 65536 of a multiprocessor. A lone warpgroup has enough as it is.
constexpr int kLoadRegisters = 24;
constexpr int kMultiplyRegisters = 240;
using Large = Config<128, 256>;
using Medium = Config<128, 128>;
using Small = Config<64, 128>;

template <class C>
constexpr int shared_bytes(int stages, int boxes) {
  return stages * C::kStageBytes + C::kWarpgroups * (boxes * kBoxBytes + C::kBn * 4) +
         ring_barrier_bytes(stages);
}

struct Params {
  CUtensorMap x, w, y;
  LinearEpilogue epilogue;
  int64_t m, n;
  int m_tiles, n_tiles;  // in tiles of a cluster
  int group;             // of the tile order
  int k_steps;
  int stages;
  int boxes;           // 2 or 4: staging memory of a warpgroup
  int cluster;         // blocks along M
  bool y_map;          // Y is stored by the copy engine
  bool w_is_constant;  // W may be read before the kernels in front have ended
};

// ---- epilogue ----

template <class Y>
__device__ uint32_t pack(float low, float high) {
  const Vector<Y, 2> two = {from_f32<Y>(low), from_f32<Y>(high)};
  return *reinterpret_cast<const uint32_t*>(&two);
}

// A box of finished values, 64 rows of 128 bytes from (m0, n0) on, out of staging memory into a Y
// that the copy engine cannot take. Each warp stores the rows that it staged.
template <class Y>
__device__ void store_box(const Params& p, const uint8_t* box, int64_t m0, int64_t n0) {
  constexpr int kColumns = kLineBytes / static_cast<int>(sizeof(Y));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
  const LinearEpilogue& e = p.epilogue;
  __syncwarp();
#pragma unroll 4
  for (int r = first; r < first + 16; ++r) {
    if (m0 + r >= p.m) break;
    Y* const to = static_cast<Y*>(e.y) + e.rows.offset(m0 + r) + n0 * e.rows.stride;
#pragma unroll
    for (int c = lane; c < kColumns; c += 32) {
      const int chunk = c * static_cast<int>(sizeof(Y)) / 16;
      const int in_chunk = c * static_cast<int>(sizeof(Y)) % 16;
      if (n0 + c < p.n) {
        to[c * e.rows.stride] = *reinterpret_cast<const Y*>(box + swizzled(r, chunk) + in_chunk);
      }
    }
  }
}

// Columns [first, first + 128 bytes) of a warpgroup's accumulators, finished, into a box.
template <class C, class Y>
__device__ void stage_box(const LinearEpilogue& e, const float (&acc)[C::kBn / 2], int first,
                          const float* bias, uint8_t* box) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row0 = static_cast<int>(threadIdx.x) % 128 / 32 * 16;
  // Half h of the four of block j of 8 columns: two neighbours of one row.
  const auto two = [&](int j, int h) {
    const float2 b = *reinterpret_cast<const float2*>(bias + 8 * j + lane % 4 * 2);
    return float2{finish(e, acc[4 * j + 2 * h], b.x), finish(e, acc[4 * j + 2 * h + 1], b.y)};
  };
  if constexpr (sizeof(Y) == 4) {  // 32 columns
#pragma unroll
    for (int j = first / 8; j < first / 8 + 4; ++j) {
      const int chunk = 2 * (j - first / 8) + lane % 4 / 2;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint8_t* const to = box + swizzled(row0 + h * 8 + lane / 4, chunk) + lane % 2 * 8;
        *reinterpret_cast<float2*>(to) = two(j, h);
      }
    }
  } else {  // 64 columns
    const uint32_t to = shared_address(box);
    const int row = row0 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int j = first / 8; j < first / 8 + 8; j += 2) {
      uint32_t four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 values = two(j + i / 2, i % 2);
        four[i] = pack<Y>(values.x, values.y);
      }
      stmatrix_x4(to + swizzled(row, j - first / 8 + lane / 16), four);
    }
  }
}

// A warpgroup's 64 rows of a tile. `staging`: boxes that take turns, so that one is filled while
// the copy engine reads the others.
template <class C, class Y>
__device__ void store_rows(const Params& p, const float (&acc)[C::kBn / 2], int64_t m0, int64_t n0,
                           const float* bias, uint8_t* staging) {
  constexpr int kColumns = kLineBytes / static_cast<int>(sizeof(Y));
  const int barrier = 1 + static_cast<int>(threadIdx.x) / 128;
  const bool leader = threadIdx.x % 128 == 0;
#pragma unroll
  for (int first = 0; first < C::kBn; first += kColumns) {
    uint8_t* const box = staging + first / kColumns % p.boxes * kBoxBytes;
    if (leader && p.boxes == 2) tma_wait_read<1>();
    if (leader && p.boxes == 4) tma_wait_read<3>();
    named_barrier(barrier, 128);
    stage_box<C, Y>(p.epilogue, acc, first, bias, box);
    if (p.y_map) {
      async_proxy_fence();
      named_barrier(barrier, 128);
      if (leader) {
        tma_store(&p.y, static_cast<int>(n0) + first, static_cast<int>(m0), shared_address(box));
        tma_commit();
      }
    } else {
      store_box<Y>(p, box, m0, n0 + first);
    }
  }
}

// ---- kernel ----

struct TileWalk {
  int index, step, count;
  int m_tiles, n_tiles, group;

  __device__ TileWalk(const Params& p)
      : index(static_cast<int>(blockIdx.x) / p.cluster),
        step(static_cast<int>(gridDim.x) / p.cluster),
        count(p.m_tiles * p.n_tiles),
        m_tiles(p.m_tiles),
        n_tiles(p.n_tiles),
        group(p.group) {}
  __device__ bool more() const { return index < count; }
  __device__ void next() { index += step; }
  // In tiles of a cluster.
  __device__ Tile<int> tile() const { return grouped_tile<int>(index, m_tiles, n_tiles, group); }
};

template <class C, class T, bool kNMajor>
__global__ void __launch_bounds__(C::kThreads, 1) linear_sm90(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const staging = shared + p.stages * C::kStageBytes;
  float* const bias = reinterpret_cast<float*>(staging + C::kWarpgroups * p.boxes * kBoxBytes);
  const uint32_t ring = shared_address(shared);
  const RingBarriers barriers{shared_address(bias + C::kWarpgroups * C::kBn), p.stages};
  const int rank = p.cluster == 1 ? 0 : static_cast<int>(cluster_rank());
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;

  if (threadIdx.x == 0) {
    tma_prefetch(&p.x);
    tma_prefetch(&p.w);
    barriers.init(C::kWarpgroups * p.cluster);
  }
  if (p.cluster == 1) {
    __syncthreads();
  } else {  // nobody may signal a barrier of a block that has not made it
    cluster_arrive();
    cluster_wait();
  }
  let_dependents_start();

  if (warpgroup == C::kWarpgroups) {
    if constexpr (C::kWarpgroups > 1) release_registers<kLoadRegisters>();
    if (threadIdx.x % 128 == 0) {
      const auto all = static_cast<uint16_t>((1 << p.cluster) - 1);
      const auto load_w = [&](const Tile<int>& tile, int k, int stage) {
        mbarrier_expect(barriers.full(stage), C::kStageBytes);
        load_rows<C::kBn, kNMajor>(ring + stage * C::kStageBytes + C::kABytes, &p.w,
                                   tile.n * C::kBn, k * kBK, barriers.full(stage), rank, p.cluster,
                                   all);
      };
      TileWalk walk(p);
      int ahead = p.w_is_constant && walk.more() ? min(p.stages, p.k_steps) : 0;
      for (int k = 0; k < ahead; ++k) load_w(walk.tile(), k, k);
      wait_for_dependencies();
      RingPosition at;
      for (; walk.more(); walk.next()) {
        const Tile<int> tile = walk.tile();
#pragma unroll 1
        for (int k = 0; k < p.k_steps; ++k) {
          if (k >= ahead) {
            mbarrier_wait(barriers.empty(at.stage), at.parity ^ 1);
            load_w(tile, k, at.stage);
          }
          load_rows<C::kBm, false>(ring + at.stage * C::kStageBytes, &p.x,
                                   (tile.m * p.cluster + rank) * C::kBm, k * kBK,
                                   barriers.full(at.stage), 0, 1, 1);
          at.advance(p.stages);
        }
        ahead = 0;
      }
    }
  } else {
    if constexpr (C::kWarpgroups > 1) claim_registers<kMultiplyRegisters>();
    wait_for_dependencies();
    const int thread = static_cast<int>(threadIdx.x) % 128;
    RingPosition at;
    float acc[C::kBn / 2];
    for (TileWalk walk(p); walk.more(); walk.next()) {
      const Tile<int> tile = walk.tile();
      const int64_t m0 = int64_t{tile.m * p.cluster + rank} * C::kBm + warpgroup * 64;
      const int64_t n0 = int64_t{tile.n} * C::kBn;
      float* const own_bias = bias + warpgroup * C::kBn;
      for (int c = thread; c < C::kBn; c += 128) {
        own_bias[c] = n0 + c < p.n ? bias_at(p.epilogue, n0 + c) : 0.0f;
      }
      int before = 0;  // the stage that the products in flight, but the newest, read
#pragma unroll 1
      for (int k = 0; k < p.k_steps; ++k) {
        mbarrier_wait(barriers.full(at.stage), at.parity);
        const uint32_t stage = ring + at.stage * C::kStageBytes;
        multiply_stage<T, C::kBn, false, kNMajor>(acc, stage + warpgroup * kBoxBytes,
                                                  stage + C::kABytes, k > 0);
        if (k > 0) {
          wgmma_wait<1>();
          if (thread < p.cluster) mbarrier_arrive(barriers.empty(before), thread);
        }
        before = at.stage;
        at.advance(p.stages);
      }
      wgmma_wait<0>();
      if (thread < p.cluster) mbarrier_arrive(barriers.empty(before), thread);
      uint8_t* const own_staging = staging + warpgroup * p.boxes * kBoxBytes;
      if (p.epilogue.dtype == DType::kF32) {
        store_rows<C, float>(p, acc, m0, n0, own_bias, own_staging);
      } else if (p.epilogue.dtype == DType::kF16) {
        store_rows<C, __half>(p, acc, m0, n0, own_bias, own_staging);
      } else {
        store_rows<C, __nv_bfloat16>(p, acc, m0, n0, own_bias, own_staging);
      }
    }
    if (thread == 0) tma_wait_read<0>();
  }
  if (p.cluster > 1) {  // the other block may still signal this one's barriers
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

// ---- host ----

struct TileInfo {
  const char* name;
  int bm, bn;
  int threads;
  int (*shared_bytes)(int stages, int boxes);
};
template <class C>
constexpr TileInfo info_of(const char* name) {
  return {name, C::kBm, C::kBn, C::kThreads, shared_bytes<C>};
}
constexpr TileInfo kTiles[] = {info_of<Large>("128x256x64"), info_of<Medium>("128x128x64"),
                               info_of<Small>("64x128x64")};

struct Choice {
  int tile = 0;  // index into kTiles
  int stages = 0;
  int boxes = 2;
  int cluster = 1;
  int group = 8;  // of the tile order
  double cost_us = 0;
};

std::string to_string(const Choice& c) {
  return std::string(kTiles[c.tile].name) + ", " + std::to_string(c.stages) + "+" +
         std::to_string(c.boxes) + " stages, cluster " + std::to_string(c.cluster) + ", group " +
         std::to_string(c.group);
}

double cost_of(const Problem& p, const Choice& c) {
  const LinearSizes s = linear_sizes(p);
  const TileInfo& t = kTiles[c.tile];
  const double tiles = static_cast<double>(ceil_div(s.m, t.bm)) * ceil_div(s.n, t.bn);
  return 3 + std::ceil(tiles / p.device.multiprocessors) * (1 + ceil_div(s.k, kBK) * t.bn * 0.0025);
}

// Cheapest first.
std::vector<Choice> choices(const Problem& p) {
  std::vector<Choice> all;
  for (int tile = 0; tile < static_cast<int>(std::size(kTiles)); ++tile) {
    for (int boxes : {2, 4}) {
      int stages = 8;
      while (stages > 1 && kTiles[tile].shared_bytes(stages, boxes) > p.device.shared_bytes) {
        --stages;
      }
      if (stages < 2) continue;
      for (int cluster : {1, 2}) {
        for (int group : {4, 8, 16}) {
          Choice c{tile, stages, boxes, cluster, group};
          c.cost_us = cost_of(p, c);
          all.push_back(c);
        }
      }
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Choice& a, const Choice& b) { return a.cost_us < b.cost_us; });
  return all;
}

std::optional<Choice> choose(const Problem& p) {
  for (const Choice& c : choices(p)) {
    if (p.config.empty() || to_string(c) == p.config) return c;
  }
  return std::nullopt;
}

std::vector<KernelConfig> configs(const Problem& p) {
  std::vector<KernelConfig> all;
  for (const Choice& c : choices(p)) all.push_back({to_string(c), c.cost_us});
  return all;
}

Support supports(const Problem& p) {
  if (const std::string refusal = tensor_map_refusal(p); !refusal.empty()) {
    return Support::no(refusal);
  }
  const auto choice = choose(p);
  if (!choice) return Support::no("has no configuration " + p.config);
  return Support::yes(choice->cost_us, "wgmma, " + to_string(*choice));
}

using Kernel = void (*)(Params);

template <class C, class T>
Kernel kernel_of(WMajor major) {
  return major == WMajor::kN ? linear_sm90<C, T, true> : linear_sm90<C, T, false>;
}
template <class T>
Kernel kernel_of(int tile, WMajor major) {
  const Kernel kernels[] = {kernel_of<Large, T>(major), kernel_of<Medium, T>(major),
                            kernel_of<Small, T>(major)};
  return kernels[tile];
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  const Choice c = *choose(p);
  const TileInfo& tile = kTiles[c.tile];
  const LinearSizes s = linear_sizes(p);
  Params params;
  params.x = x_map(p, buffers.inputs[0], tile.bm);
  params.w = w_map(p, buffers.inputs[1], tile.bn / c.cluster);
  params.epilogue = epilogue_of(p, buffers);
  params.y_map = stores_wide(p.outputs[0]) && rows_of(p.outputs[0]).leading.shape.rank() <= 1;
  if (params.y_map) {
    const Rows y = rows_of(p.outputs[0]);
    const int64_t stride = y.leading.shape.rank() == 0 ? s.n : y.leading.strides[0];
    params.y = make_tensor_map({buffers.outputs[0], p.outputs[0].dtype, s.m, s.n, stride, 64});
  }
  params.m = s.m;
  params.n = s.n;
  params.m_tiles = static_cast<int>(ceil_div(s.m, int64_t{tile.bm} * c.cluster));
  params.n_tiles = static_cast<int>(ceil_div(s.n, tile.bn));
  params.group = c.group;
  params.k_steps = static_cast<int>(ceil_div(s.k, kBK));
  params.stages = c.stages;
  params.boxes = c.boxes;
  params.w_is_constant = p.inputs[1].constant;
  params.cluster = c.cluster;
  const WMajor major = w_major(p);
  const Kernel kernel = p.inputs[0].dtype == DType::kF16 ? kernel_of<__half>(c.tile, major)
                                                         : kernel_of<__nv_bfloat16>(c.tile, major);
  const int bytes = tile.shared_bytes(c.stages, c.boxes);
  allow_shared_bytes(kernel, bytes);
  load_kernel(kernel);
  const int clusters =
      std::min(params.m_tiles * params.n_tiles, std::max(1, p.device.multiprocessors / c.cluster));
  const ClusterLaunch launch{static_cast<unsigned>(clusters * c.cluster),
                             static_cast<unsigned>(tile.threads), static_cast<unsigned>(bytes),
                             static_cast<unsigned>(c.cluster)};
  return make_prepared(
      [=](void* stream) { launch_overlapping(kernel, launch, as_cuda_stream(stream), params); });
}

}  // namespace

extern const KernelEntry linear_cuda_sm90;
const KernelEntry linear_cuda_sm90 = {
    .op = "linear",
    .name = "linear_cuda_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .prepare = prepare,
};

}  // namespace me
