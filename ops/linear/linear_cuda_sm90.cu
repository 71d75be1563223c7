// Y = act(X·W + b) for fp16 and bf16 on Hopper, for products large enough to fill the machine.
// Clusters of one or two blocks walk over the output tiles. In each block one thread of a warpgroup
// that keeps few registers loads stages of X and W with the bulk tensor copy engine (the blocks of
// a cluster have the same columns, and each loads its part of W for both), and a warpgroup for
// every 64 rows multiplies them with wgmma. These share no barrier but those of the stages, and
// store their rows by themselves, through shared memory, 128 bytes of 64 rows at a time; stages of
// the next tile are loaded meanwhile. A constant W is loaded before the kernels in front have
// ended.
//
// Strides of X and W that the copy engine cannot take are refused. Y may start anywhere and have
// any stride, one between all rows.
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
  int64_t y_step;        // elements between rows of Y
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
// that the copy engine cannot take. Little code, since there is a copy of it for every box of a
// tile.
template <class Y>
__device__ void store_box(const Params& p, const uint8_t* box, int64_t m0, int64_t n0) {
  constexpr int kColumns = kLineBytes / static_cast<int>(sizeof(Y));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t stride = p.epilogue.rows.stride;
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x) % 128 / 32; r < 64 && m0 + r < p.m; r += 4) {
    Y* const to = static_cast<Y*>(p.epilogue.y) + (m0 + r) * p.y_step + n0 * stride;
#pragma unroll
    for (int c = lane; c < kColumns; c += 32) {
      const int at = c * static_cast<int>(sizeof(Y));
      if (n0 + c < p.n) {
        to[c * stride] = *reinterpret_cast<const Y*>(box + swizzled(r, at / 16) + at % 16);
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
// the copy engine reads the others; `turn`: whose it is, from one tile to the next.
template <class C, class Y>
__device__ void store_rows(const Params& p, const float (&acc)[C::kBn / 2], int64_t m0, int64_t n0,
                           const float* bias, uint8_t* staging, int& turn) {
  constexpr int kColumns = kLineBytes / static_cast<int>(sizeof(Y));
  const int barrier = 1 + static_cast<int>(threadIdx.x) / 128;
  const bool leader = threadIdx.x % 128 == 0;
#pragma unroll
  for (int first = 0; first < C::kBn; first += kColumns) {
    uint8_t* const box = staging + turn * kBoxBytes;
    turn = turn + 1 == p.boxes ? 0 : turn + 1;
    if (leader && p.boxes == 2) tma_wait_read<1>();
    if (leader && p.boxes == 4) tma_wait_read<3>();
    named_barrier(barrier, 128);
    stage_box<C, Y>(p.epilogue, acc, first, bias, box);
    if (p.y_map) async_proxy_fence();
    named_barrier(barrier, 128);
    if (!p.y_map) {
      store_box<Y>(p, box, m0, n0 + first);
    } else if (leader) {
      tma_store(&p.y, static_cast<int>(n0) + first, static_cast<int>(m0), shared_address(box));
      tma_commit();
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
    uint8_t* const own_staging = staging + warpgroup * p.boxes * kBoxBytes;
    float* const tile_bias = bias + warpgroup * C::kBn;
    int turn = 0;
    RingPosition at;
    float acc[C::kBn / 2];
    for (TileWalk walk(p); walk.more(); walk.next()) {
      const Tile<int> tile = walk.tile();
      const int64_t m0 = int64_t{tile.m * p.cluster + rank} * C::kBm + warpgroup * 64;
      const int64_t n0 = int64_t{tile.n} * C::kBn;
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
        } else {  // the bias comes while the first products run
#pragma unroll
          for (int c = thread; c < C::kBn; c += 128) {
            tile_bias[c] = n0 + c < p.n ? bias_at(p.epilogue, n0 + c) : 0.0f;
          }
        }
        before = at.stage;
        at.advance(p.stages);
      }
      wgmma_wait<0>();
      if (thread < p.cluster) mbarrier_arrive(barriers.empty(before), thread);
      if (p.epilogue.dtype == DType::kF32) {
        store_rows<C, float>(p, acc, m0, n0, tile_bias, own_staging, turn);
      } else if (p.epilogue.dtype == DType::kF16) {
        store_rows<C, __half>(p, acc, m0, n0, tile_bias, own_staging, turn);
      } else {
        store_rows<C, __nv_bfloat16>(p, acc, m0, n0, tile_bias, own_staging, turn);
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
  double step_us;  // kBK of K, on a full machine
};
template <class C>
constexpr TileInfo info_of(const char* name, double step_us) {
  return {name, C::kBm, C::kBn, C::kThreads, shared_bytes<C>, step_us};
}
constexpr TileInfo kTiles[] = {info_of<Large>("128x256x64", 0.692),
                               info_of<Medium>("128x128x64", 0.361),
                               info_of<Small>("64x128x64", 0.252)};

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

// Waves of tiles, each as long as its steps along K and its epilogue. The constants are fitted to
// the times of all configurations over the bench's shapes (an H200; bf16, W as [N, K]), taken with
// a longer epilogue than the present one.
double cost_of(const Problem& p, const Choice& c) {
  const LinearSizes s = linear_sizes(p);
  const TileInfo& t = kTiles[c.tile];
  const double sms = std::max(1, p.device.multiprocessors);
  const double tiles =
      static_cast<double>(ceil_div(s.m, t.bm)) * static_cast<double>(ceil_div(s.n, t.bn));
  const double steps = static_cast<double>(ceil_div(s.k, kBK));
  // A machine that is not full runs at a higher clock.
  const double step_us = t.step_us * (0.842 + 0.158 * std::min(1.0, tiles / sms));
  const double tile_us = steps * step_us + 2.91 * t.bm * t.bn / (128 * 256);
  // What the measurements prefer among the rest, within a few per cent.
  const double rest =
      (c.boxes == 2 ? 0 : 0.01) + (c.cluster == 1 ? 0 : 0.02) + (c.group == 8 ? 0 : 0.005);
  return (1.92 + std::ceil(tiles / sms) * tile_us) * (1 + rest);
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
  sort_by_cost(all);
  return all;
}

std::vector<KernelConfig> configs(const Problem& p) { return configs_of(choices(p)); }

Support supports(const Problem& p) {
  std::string refusal = tensor_map_refusal(p);
  if (refusal.empty() && rows_of(p.outputs[0]).leading.shape.rank() > 1) {
    refusal = "wants rows of Y that start one step apart";
  }
  return refusal.empty() ? support_of(p, choices(p)) : Support::no(refusal);
}

// Whether the copy engine can store Y: it writes 16 bytes at a time, past the end of a row too.
bool can_store_boxes(const TensorDesc& y, int64_t n) {
  return stores_wide(y) && n * size_of(y.dtype) % 16 == 0;
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
  const Choice c = *choose(p, choices(p));
  const TileInfo& tile = kTiles[c.tile];
  const LinearSizes s = linear_sizes(p);
  Params params;
  params.x = x_map(p, buffers.inputs[0], tile.bm);
  params.w = w_map(p, buffers.inputs[1], tile.bn / c.cluster);
  params.epilogue = epilogue_of(p, buffers);
  params.y_map = can_store_boxes(p.outputs[0], s.n);
  params.y_step = row_step(rows_of(p.outputs[0]));
  if (params.y_map) {
    params.y =
        make_tensor_map({buffers.outputs[0], p.outputs[0].dtype, s.m, s.n, params.y_step, 64});
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
  const WMajor major = *w_major(p);
  const Kernel kernel = p.inputs[0].dtype == DType::kF16 ? kernel_of<__half>(c.tile, major)
                                                         : kernel_of<__nv_bfloat16>(c.tile, major);
  const int bytes = tile.shared_bytes(c.stages, c.boxes);
  const int clusters =
      std::min(params.m_tiles * params.n_tiles, std::max(1, p.device.multiprocessors / c.cluster));
  const ClusterLaunch launch{static_cast<unsigned>(clusters * c.cluster),
                             static_cast<unsigned>(tile.threads), static_cast<unsigned>(bytes),
                             static_cast<unsigned>(c.cluster)};
  return prepare_overlapping(kernel, launch, params);
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
