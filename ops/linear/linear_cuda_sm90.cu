// Y = act(X·W + b) for fp16 and bf16 on Hopper, for products whose tiles occupy much of the
// machine. Blocks walk over the output tiles. In each, one thread of a warpgroup that keeps few
// registers loads stages of W and X with the bulk tensor copy engine, and two warpgroups multiply
// them with wgmma, which sees Y transposed: W has its 64 rows, X its columns. The two take turns,
// each with a tile of its own: while one stores its tile, the products of the other keep the tensor
// cores busy. Or they share a larger tile, which needs fewer bytes for each product, and store it
// together. Tiles are stored through shared memory, 64 rows of 128 bytes at a time. Where W and b
// are constant, the first of b is loaded before the kernels in front have ended, and the first
// stages of W, if the copy engine loads everything.
//
// X or W whose rows start elsewhere than at multiples of 16 bytes, which the copy engine cannot
// take, are gathered by the threads of two warpgroups. Y may start anywhere and have any stride,
// one between all rows.
#include "ops/linear/cuda_sm90.cuh"

namespace me {
namespace {

constexpr int kConsumers = 2;  // warpgroups that multiply; one more loads
constexpr int threads_of(bool gathered) {
  return kConsumers * 128 + (gathered ? kGatherWarps * 32 : 128);
}
// Registers of a thread that loads, and of one that multiplies: together all 65536 of a
// multiprocessor.
constexpr int kLoadRegisters = 24;
constexpr int kMultiplyRegisters = 240;
constexpr int kBoxes = 2;     // staging memory of a warpgroup
constexpr int kRawSlots = 6;  // stages on their way here as raw lines

// A tile of kTeam warpgroups, each with kWRows columns of Y and all kXRows rows.
template <int kTeam_, int kWRows_, int kXRows_>
struct Config {
  static constexpr int kTeam = kTeam_;
  static constexpr int kTeams = kConsumers / kTeam;
  static constexpr int kWRows = kWRows_;
  static constexpr int kXRows = kXRows_;
  static constexpr int kBm = kXRows;
  static constexpr int kBn = kTeam * kWRows;
  static constexpr int kWBytes = kBn * kLineBytes;
  static constexpr int kStageBytes = (kBm + kBn) * kLineBytes;
  static constexpr int kRawBytes = (kBm + kBn) * kRawLineBytes;
  // Of the tiles, the one that exists with loads by threads, too: the one for small products.
  static constexpr bool kGathers = kBm * kBn == 64 * 64;
  // More accumulators leave no registers for stores by threads.
  static constexpr bool kStoresByThreads = kWRows * kXRows <= 128 * 128;
};
using Shared = Config<2, 64, 256>;
using Wide = Config<1, 128, 192>;
using Large = Config<1, 128, 128>;
using Medium = Config<1, 64, 128>;
using Small = Config<1, 64, 64>;

template <class C>
constexpr int shared_bytes(int stages, bool gathered) {
  return stages * C::kStageBytes + kConsumers * (kBoxes * kBoxBytes + C::kWRows * 4) +
         ring_barrier_bytes(stages) + 2 * 8 + (gathered ? kRawSlots * C::kRawBytes : 0);
}

struct Params {
  CUtensorMap x, w, y;
  Lines x_lines, w_lines;  // where they are gathered
  LinearEpilogue epilogue;
  int64_t m, n;
  int64_t y_step;  // elements between rows of Y
  int m_tiles, n_tiles;
  int group;  // of the tile order
  int k_steps;
  int stages;
  bool y_map;                 // Y is stored by the copy engine
  bool weights_are_constant;  // W and b may be read before the kernels in front have ended
};

// ---- epilogue ----

template <class Y>
__device__ uint32_t pack(float low, float high) {
  const Vector<Y, 2> two = {from_f32<Y>(low), from_f32<Y>(high)};
  return *reinterpret_cast<const uint32_t*>(&two);
}

// A box of staging memory holds 64 columns of Y in lines of 128 bytes: 64 rows of 16-bit elements,
// or 32 rows of fp32, the second 32 columns behind the first.
template <class Y>
constexpr int kBoxRows = 128 / static_cast<int>(sizeof(Y));
template <class Y>
constexpr int kLineColumns = kLineBytes / static_cast<int>(sizeof(Y));

// Where row m, column n of a box is, in bytes.
template <class Y>
__device__ int box_offset(int m, int n) {
  const int at = n % kLineColumns<Y> * static_cast<int>(sizeof(Y));
  return n / kLineColumns<Y> * (kBoxBytes / 2) + swizzled(m, at / 16) + at % 16;
}

// A box of finished values, from row m0 and column n0 on, into a Y that the copy engine cannot
// take. Little code, since there is a copy of it for every box of a tile.
template <class Y>
__device__ void store_box(const Params& p, const uint8_t* box, int m0, int n0) {
  const int64_t stride = p.epilogue.rows.stride;
#pragma unroll 4
  for (int m = static_cast<int>(threadIdx.x % 128 / 32); m < kBoxRows<Y> && m0 + m < p.m; m += 4) {
    Y* const to = static_cast<Y*>(p.epilogue.y) + int64_t{m0 + m} * p.y_step + n0 * stride;
#pragma unroll
    for (int n = static_cast<int>(threadIdx.x % 32); n < 64; n += 32) {
      if (n0 + n < p.n) to[n * stride] = *reinterpret_cast<const Y*>(box + box_offset<Y>(m, n));
    }
  }
}

// Rows [first, first + kBoxRows) of 64 columns of Y, finished, into a box. acc: those of a wgmma
// whose 64 rows are the columns; `bias`: theirs, in shared memory, and read anew for every few
// sums: with all of them ready to start at once, the compiler runs out of registers.
template <class Y, int kCount>
__device__ void stage_box(const LinearEpilogue& e, const float (&acc)[kCount], int first,
                          const volatile float* bias, uint8_t* box) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x % 128 / 32);
  // Two neighbouring rows of one column: block j of 8 rows, half h of the warp's 16 columns.
  const auto two = [&](int j, int h) {
    const float b = bias[warp * 16 + h * 8 + lane / 4];
    return float2{finish(e, acc[4 * j + 2 * h], b), finish(e, acc[4 * j + 2 * h + 1], b)};
  };
  // Blocks of 8 rows differ by a constant, since the swizzle repeats after as many.
  if constexpr (sizeof(Y) == 4) {
    const int m = lane % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int n = warp * 16 + h * 8 + lane / 4;
      uint8_t* const even = box + box_offset<Y>(m, n);
      uint8_t* const odd = box + box_offset<Y>(m + 1, n);
#pragma unroll
      for (int j = 0; j < kBoxRows<Y> / 8; ++j) {
        const float2 values = two(first / 8 + j, h);
        *reinterpret_cast<float*>(even + 8 * j * kLineBytes) = values.x;
        *reinterpret_cast<float*>(odd + 8 * j * kLineBytes) = values.y;
      }
    }
  } else {
    const uint32_t to =
        shared_address(box) + swizzled(lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2);
#pragma unroll
    for (int j = 0; j < kBoxRows<Y> / 8; j += 2) {
      uint32_t four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 values = two(first / 8 + j + i / 2, i % 2);
        four[i] = pack<Y>(values.x, values.y);
      }
      stmatrix_transposed_x4(to + 8 * j * kLineBytes, four);
    }
  }
}

// A warpgroup's part of a tile, from row m0 and column n0 on. `staging`: boxes that take turns, so
// that one is filled while the copy engine reads the other; `turn`: whose it is, from one tile to
// the next.
template <class C, class Y>
__device__ void store_tile(const Params& p, const float (&acc)[C::kWRows / 64][C::kXRows / 2],
                           int m0, int n0, const float* bias, uint8_t* staging, int& turn) {
  const int barrier = 1 + static_cast<int>(threadIdx.x / 128);
  const bool leader = threadIdx.x % 128 == 0;
#pragma unroll
  for (int block = 0; block < C::kWRows / 64; ++block) {
#pragma unroll
    for (int first = 0; first < C::kXRows; first += kBoxRows<Y>) {
      uint8_t* const box = staging + turn * kBoxBytes;
      turn ^= 1;
      if (leader) tma_wait_read<kBoxes - 1>();
      named_barrier(barrier, 128);
      stage_box<Y>(p.epilogue, acc[block], first, bias + block * 64, box);
      if (!C::kStoresByThreads || p.y_map) async_proxy_fence();
      named_barrier(barrier, 128);
      if (C::kStoresByThreads && !p.y_map) {
        store_box<Y>(p, box, m0 + first, n0 + block * 64);
      } else if (leader) {
#pragma unroll
        for (int n = 0; n < 64; n += kLineColumns<Y>) {
          tma_store(&p.y, n0 + block * 64 + n, m0 + first,
                    shared_address(box) + box_offset<Y>(0, n));
        }
        tma_commit();
      }
    }
  }
}

// ---- kernel ----

__device__ Tile<int> tile_of(const Params& p, int index) {
  return grouped_tile<int>(index, p.m_tiles, p.n_tiles, p.group);
}

// Fills the ring with the stages of all this block's tiles where X or W has to be gathered. By all
// of the gathering warps, each its own lines of every stage.
template <class C, bool kNMajor>
__device__ void gather_stages(const Params& p, uint32_t ring, uint32_t raw,
                              const RingBarriers& barriers) {
  const int tiles = p.m_tiles * p.n_tiles;
  const int warp = static_cast<int>(threadIdx.x / 32) - kConsumers * 4;
  const bool x_gathered = p.x_lines.data != nullptr;
  const bool w_gathered = p.w_lines.data != nullptr;
  const uint32_t copied =
      (x_gathered ? 0 : C::kBm * kLineBytes) + (w_gathered ? 0 : C::kBn * kLineBytes);
  int next = static_cast<int>(blockIdx.x);  // tile and step of the next fetch
  int next_k = 0;
  Tile<int> next_tile = tile_of(p, next);  // there is one for every block
  const auto fetch = [&](int slot) {
    if (next < tiles) {
      const uint32_t to = raw + slot * C::kRawBytes;
      if (w_gathered) {
        fetch_raw_rows<C::kBn, kNMajor>(warp, to, p.w_lines, next_tile.n * C::kBn, next_k * kBK);
      }
      if (x_gathered) {
        fetch_raw_rows<C::kBm, false>(warp, to + C::kBn * kRawLineBytes, p.x_lines,
                                      next_tile.m * C::kBm, next_k * kBK);
      }
      if (++next_k == p.k_steps) {
        next_k = 0;
        next += static_cast<int>(gridDim.x);
        if (next < tiles) next_tile = tile_of(p, next);
      }
    }
    cp_async_commit();  // one with nothing in it counts as well
  };
  for (int slot = 0; slot < kRawSlots - 1; ++slot) fetch(slot);
  int slot = 0;
  RingPosition at;
  for (int index = static_cast<int>(blockIdx.x); index < tiles;
       index += static_cast<int>(gridDim.x)) {
    const Tile<int> tile = tile_of(p, index);
#pragma unroll 1
    for (int k = 0; k < p.k_steps; ++k) {
      cp_async_wait<kRawSlots - 2>();
      __syncwarp();  // all lanes have their chunks, and have shifted those of the slot before
      fetch(slot == 0 ? kRawSlots - 1 : slot - 1);
      mbarrier_wait(barriers.empty(at.stage), at.parity ^ 1);
      const uint32_t full = barriers.full(at.stage);
      const uint32_t w_to = ring + at.stage * C::kStageBytes;
      const uint32_t x_to = w_to + C::kWBytes;
      const uint32_t from = raw + slot * C::kRawBytes;
      if (threadIdx.x == kConsumers * 128) {
        mbarrier_expect(full, copied);
        if (!w_gathered) load_rows<C::kBn, kNMajor>(w_to, &p.w, tile.n * C::kBn, k * kBK, full);
        if (!x_gathered) load_rows<C::kBm, false>(x_to, &p.x, tile.m * C::kBm, k * kBK, full);
      }
      if (w_gathered) {
        shift_raw_rows<C::kBn, kNMajor>(warp, w_to, from, p.w_lines, tile.n * C::kBn, k * kBK);
      }
      if (x_gathered) {
        shift_raw_rows<C::kBm, false>(warp, x_to, from + C::kBn * kRawLineBytes, p.x_lines,
                                      tile.m * C::kBm, k * kBK);
      }
      async_proxy_fence();
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(full);
      slot = slot == kRawSlots - 1 ? 0 : slot + 1;
      at.advance(p.stages);
    }
  }
}

template <class C, class T, bool kNMajor, bool kGathered>
__global__ void __launch_bounds__(threads_of(kGathered), 1)
    linear_sm90(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const staging = shared + p.stages * C::kStageBytes;
  const uint32_t ring = shared_address(shared);
  float* const bias = reinterpret_cast<float*>(staging + kConsumers * kBoxes * kBoxBytes);
  const uint32_t raw = shared_address(bias + kConsumers * C::kWRows);
  const RingBarriers barriers{raw + (kGathered ? kRawSlots * C::kRawBytes : 0), p.stages};
  // Of two teams, whose turn it is to multiply: one barrier each. A team may not wait for its
  // stages while the other has some to go, since a barrier tells only the last phase from the one
  // before.
  const uint32_t turns = barriers.address + ring_barrier_bytes(p.stages);
  const int warpgroup = static_cast<int>(threadIdx.x / 128);

  if (threadIdx.x == 0) {
    if (!kGathered) {
      tma_prefetch(&p.x);
      tma_prefetch(&p.w);
    }
    mbarrier_init(turns, 1);
    mbarrier_init(turns + 8, 1);
    barriers.init(C::kTeam, kGathered ? 1 + kGatherWarps : 1);
  }
  __syncthreads();
  let_dependents_start();

  if (kGathered && warpgroup >= kConsumers) {
    wait_for_dependencies();
    gather_stages<C, kNMajor>(p, ring, raw, barriers);
  } else if (warpgroup == kConsumers) {
    release_registers<kLoadRegisters>();
    if (threadIdx.x % 128 != 0) return;
    const auto load_w = [&](const Tile<int>& tile, int k, int stage) {
      mbarrier_expect(barriers.full(stage), C::kStageBytes);
      load_rows<C::kBn, kNMajor>(ring + stage * C::kStageBytes, &p.w, tile.n * C::kBn, k * kBK,
                                 barriers.full(stage));
    };
    int index = static_cast<int>(blockIdx.x);  // there is a tile for every block
    int ahead = p.weights_are_constant ? min(p.stages, p.k_steps) : 0;
    for (int k = 0; k < ahead; ++k) load_w(tile_of(p, index), k, k);
    wait_for_dependencies();
    RingPosition at;
    for (; index < p.m_tiles * p.n_tiles; index += static_cast<int>(gridDim.x)) {
      const Tile<int> tile = tile_of(p, index);
#pragma unroll 1
      for (int k = 0; k < p.k_steps; ++k) {
        if (k >= ahead) {
          mbarrier_wait(barriers.empty(at.stage), at.parity ^ 1);
          load_w(tile, k, at.stage);
        }
        load_rows<C::kBm, false>(ring + at.stage * C::kStageBytes + C::kWBytes, &p.x,
                                 tile.m * C::kBm, k * kBK, barriers.full(at.stage));
        at.advance(p.stages);
      }
      ahead = 0;
    }
  } else {
    if constexpr (!kGathered) claim_registers<kMultiplyRegisters>();
    const int team = warpgroup / C::kTeam;
    const int part = warpgroup % C::kTeam;
    const int thread = static_cast<int>(threadIdx.x % 128);
    uint8_t* const own_staging = staging + warpgroup * kBoxes * kBoxBytes;
    float* const tile_bias = bias + warpgroup * C::kWRows;
    float acc[C::kWRows / 64][C::kXRows / 2];
    int box_turn = 0;
    uint32_t turn_parity = team == 0 ? 1 : 0;  // the first turn is the first team's
    RingPosition at;
    at.advance(p.stages, team * p.k_steps);
    const int step = static_cast<int>(gridDim.x);
    const int first = static_cast<int>(blockIdx.x) + team * step;
    const auto load_bias = [&](const Tile<int>& tile) {
      const int n0 = tile.n * C::kBn + part * C::kWRows;
      for (int c = thread; c < C::kWRows; c += 128) {
        tile_bias[c] = n0 + c < p.n ? bias_at(p.epilogue, n0 + c) : 0.0f;
      }
    };
    if (!p.weights_are_constant) wait_for_dependencies();
    load_bias(tile_of(p, min(first, p.m_tiles * p.n_tiles - 1)));
    wait_for_dependencies();
    for (int index = first; index < p.m_tiles * p.n_tiles; index += C::kTeams * step) {
      const Tile<int> tile = tile_of(p, index);
      const int m0 = tile.m * C::kBm;
      const int n0 = tile.n * C::kBn + part * C::kWRows;
      if constexpr (C::kTeams > 1) {
        mbarrier_wait(turns + team * 8, turn_parity);
        turn_parity ^= 1;
      }
#pragma unroll 1
      for (int k = 0; k < p.k_steps; ++k) {
        mbarrier_wait(barriers.full(at.stage), at.parity);
        const uint32_t stage = ring + at.stage * C::kStageBytes;
        multiply_stage<T, kNMajor>(acc, stage + part * (C::kWRows / 64) * kBoxBytes,
                                   stage + C::kWBytes, k > 0);
        if (k > 0) {
          wgmma_wait<1>();
          if (thread == 0) mbarrier_arrive(barriers.empty(at.before(p.stages)));
        } else if (index != first) {  // the bias comes while the first products run
          load_bias(tile);
        }
        at.advance(p.stages);
      }
      if (C::kTeams > 1 && thread == 0) mbarrier_arrive(turns + (1 - team) * 8);
      wgmma_wait<0>();
      if (thread == 0) mbarrier_arrive(barriers.empty(at.before(p.stages)));
      if (p.epilogue.dtype == DType::kF32) {
        store_tile<C, float>(p, acc, m0, n0, tile_bias, own_staging, box_turn);
      } else if (p.epilogue.dtype == DType::kF16) {
        store_tile<C, __half>(p, acc, m0, n0, tile_bias, own_staging, box_turn);
      } else {
        store_tile<C, __nv_bfloat16>(p, acc, m0, n0, tile_bias, own_staging, box_turn);
      }
      at.advance(p.stages, (C::kTeams - 1) * p.k_steps);
    }
    if (thread == 0) tma_wait_read<0>();
  }
}

// ---- host ----

struct TileInfo {
  const char* name;
  int bm, bn;
  int (*shared_bytes)(int stages, bool gathered);
  bool gathers, stores_by_threads;
  double step_us;      // kBK of K, on a full machine
  double idle;         // of step_us where few tiles share the memory, the caches and the power
  double epilogue_us;  // of a tile
  bool in_turns;       // one team stores while the other multiplies
};
template <class C>
constexpr TileInfo info_of(const char* name, double step_us, double idle, double epilogue_us) {
  return {name,    C::kBm, C::kBn,      shared_bytes<C>, C::kGathers, C::kStoresByThreads,
          step_us, idle,   epilogue_us, C::kTeams > 1};
}
// Fitted to the times of all five over the bench's shapes (an H200; bf16, both layouts), which the
// picks are tested against.
constexpr TileInfo kTiles[] = {info_of<Shared>("256x128x64", 0.799, 0.824, 1.98),
                               info_of<Wide>("192x128x64", 0.596, 0.473, 2.44),
                               info_of<Large>("128x128x64", 0.402, 0.624, 2.22),
                               info_of<Medium>("128x64x64", 0.290, 0.502, 1.37),
                               info_of<Small>("64x64x64", 0.219, 0.706, 0.618)};

struct Choice {
  int tile = 0;  // index into kTiles
  int stages = 0;
  int group = 8;  // of the tile order
  bool gathered = false;
  double cost_us = 0;
};

std::string to_string(const Choice& c) {
  return std::string(kTiles[c.tile].name) + ", " + std::to_string(c.stages) + " stages, group " +
         std::to_string(c.group) + (c.gathered ? ", gathered" : "");
}

// Whether the copy engine can store Y: it writes 16 bytes at a time, past the end of a row too.
bool can_store_boxes(const TensorDesc& y, int64_t n) {
  return stores_wide(y) && n * size_of(y.dtype) % 16 == 0;
}

// Waves of tiles, each as long as its steps along K and what of its epilogue nothing hides.
double cost_of(const Problem& p, const Choice& c) {
  constexpr double kGatheredSteps = 3.61;  // times as long
  constexpr double kStoreByThreadsUs = 2;  // of a tile, more
  const LinearSizes s = linear_sizes(p);
  const TileInfo& t = kTiles[c.tile];
  const double sms = std::max(1, p.device.multiprocessors);
  const double tiles =
      static_cast<double>(ceil_div(s.m, t.bm)) * static_cast<double>(ceil_div(s.n, t.bn));
  const double waves = std::ceil(tiles / sms);
  const double products_us = static_cast<double>(ceil_div(s.k, kBK)) * t.step_us *
                             (c.gathered ? kGatheredSteps : 1) *
                             (t.idle + (1 - t.idle) * std::min(1.0, tiles / (1.57 * sms)));
  const double epilogue_us =
      t.epilogue_us + (can_store_boxes(p.outputs[0], s.n) ? 0 : kStoreByThreadsUs);
  const double both_us = products_us + epilogue_us;
  const double cost =
      1.35 + (t.in_turns && waves > 1 ? waves * std::max(products_us, both_us / 2) + epilogue_us
                                      : waves * both_us);
  return cost * (c.group == 8 ? 1 : 1.005);
}

// Cheapest first.
std::vector<Choice> choices(const Problem& p) {
  const bool gathered = !(has_x_map(p) && has_w_map(p));
  const bool by_threads = !can_store_boxes(p.outputs[0], linear_sizes(p).n);
  std::vector<Choice> all;
  for (int tile = 0; tile < static_cast<int>(std::size(kTiles)); ++tile) {
    const TileInfo& t = kTiles[tile];
    if ((gathered && !t.gathers) || (by_threads && !t.stores_by_threads)) continue;
    int stages = 8;
    while (stages > 1 && t.shared_bytes(stages, gathered) > p.device.shared_bytes) --stages;
    if (stages < 2) continue;
    for (int group : {4, 8, 16}) {
      Choice c{tile, stages, group, gathered};
      c.cost_us = cost_of(p, c);
      all.push_back(c);
    }
  }
  sort_by_cost(all);
  return all;
}

std::vector<KernelConfig> configs(const Problem& p) { return configs_of(choices(p)); }

Support supports(const Problem& p) {
  std::string refusal = operand_refusal(p);
  if (refusal.empty() && rows_of(p.outputs[0]).leading.shape.rank() > 1) {
    refusal = "wants rows of Y that start one step apart";
  }
  return refusal.empty() ? support_of(p, choices(p), "wgmma") : Support::no(refusal);
}

using Kernel = void (*)(Params);

template <class C, class T, bool kGathered>
Kernel kernel_of(WMajor major) {
  return major == WMajor::kN ? linear_sm90<C, T, true, kGathered>
                             : linear_sm90<C, T, false, kGathered>;
}
template <class C, class T>
Kernel kernel_of(WMajor major, bool gathered) {
  if constexpr (C::kGathers) {
    if (gathered) return kernel_of<C, T, true>(major);
  }
  return kernel_of<C, T, false>(major);
}
template <class T>
Kernel kernel_of(const Choice& c, WMajor major) {
  const Kernel kernels[] = {
      kernel_of<Shared, T>(major, c.gathered), kernel_of<Wide, T>(major, c.gathered),
      kernel_of<Large, T>(major, c.gathered), kernel_of<Medium, T>(major, c.gathered),
      kernel_of<Small, T>(major, c.gathered)};
  return kernels[c.tile];
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  const Choice c = *choose(p, choices(p));
  const TileInfo& tile = kTiles[c.tile];
  const LinearSizes s = linear_sizes(p);
  const TensorDesc& y = p.outputs[0];
  Params params;
  if (has_x_map(p)) {
    params.x = x_map(p, buffers.inputs[0], tile.bm);
  } else {
    params.x_lines = x_lines(p, buffers.inputs[0]);
  }
  if (has_w_map(p)) {
    params.w = w_map(p, buffers.inputs[1], tile.bn);
  } else {
    params.w_lines = w_lines(p, buffers.inputs[1]);
  }
  params.epilogue = epilogue_of(p, buffers);
  params.y_step = row_step(rows_of(y));
  params.y_map = can_store_boxes(y, s.n);
  if (params.y_map) {
    const int box_rows = y.dtype == DType::kF32 ? kBoxRows<float> : kBoxRows<__half>;
    params.y = make_tensor_map({buffers.outputs[0], y.dtype, s.m, s.n, params.y_step, box_rows});
  }
  params.m = s.m;
  params.n = s.n;
  params.m_tiles = static_cast<int>(ceil_div(s.m, tile.bm));
  params.n_tiles = static_cast<int>(ceil_div(s.n, tile.bn));
  params.group = c.group;
  params.k_steps = static_cast<int>(ceil_div(s.k, kBK));
  params.stages = c.stages;
  params.weights_are_constant = weights_are_constant(p);
  const WMajor major = *w_major(p);
  const Kernel kernel = p.inputs[0].dtype == DType::kF16 ? kernel_of<__half>(c, major)
                                                         : kernel_of<__nv_bfloat16>(c, major);
  const int blocks =
      std::min(params.m_tiles * params.n_tiles, std::max(1, p.device.multiprocessors));
  return prepare_overlapping(
      kernel,
      {static_cast<unsigned>(blocks), static_cast<unsigned>(threads_of(c.gathered)),
       static_cast<unsigned>(tile.shared_bytes(c.stages, c.gathered)), 1},
      params);
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
