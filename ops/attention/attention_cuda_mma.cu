// attention_cuda_mma: O = softmax(scale · Q·Kᵀ + mask) · V for fp16 and bf16 on tensor cores, by
// mma.m16n8k16 with fp32 accumulators. Any chip from compute capability 8.0 on, any shape and
// stride.
//
// A block takes BM query rows of one head of K (cuda_schedule.h) against its key tiles of BN keys,
// which come through a ring of stages in shared memory:
//
//             key tiles of BN ──►
//   BM rows   ┌──┬──┬──┬──┐
//   block 0   │╲ │  │  │  │   ╲ crosses the diagonal: the mask applies
//   block 1   │  │╲ │  │  │   blank above it: never computed
//   block 2   │  │  │╲ │  │   blank below it: no mask
//             └──┴──┴──┴──┘
//
//   tile t:   wait for its K and V, barrier (which also frees the oldest stage)
//             start the copies of tile t + kStages - 1
//             S = Q·Kᵀ        a warp: 16·kMi rows, BN / kKeyWarps keys, all in registers
//             m' = max(m, max S), P = exp(S - m'), f = exp(m - m'), l = f·l + Σ P
//             a = f·a + P·V   P's accumulators become the left operand in place, in 16 bits
//
// Warps lie along rows (kRowWarps, tall blocks) or along the keys of a tile (kKeyWarps, flat blocks
// for decoding: 16 rows, and warps that each carry their own m, l, a and merge them at the end). A
// tall warp of 32 rows uses each fragment of K and V twice, without which the bandwidth of shared
// memory would be the limit: 128x64 keys at head_dim 128 read 5·32 KiB of it, 1280 cycles, beside
// about 1600 cycles of mma.
//
// Lines in shared memory are kD elements of Q, K or V, in 16-byte chunks; chunk c of line r is put
// at c ^ (r % 8), so that the eight lines that an ldmatrix reads at one c fall into different
// banks. Lines past the last row or key, and columns past head_dim or value_dim, are zeros.
//
// Two ways to fill them, chosen when preparing: cp.async where rows are contiguous and start at
// multiples of 16 bytes (`async`), and single elements gathered by any strides otherwise.
//
// Masking is exact. Scores of keys that a row does not see become -inf, whatever they are. Their
// weights are 0, but 0·V is NaN where V is not finite: in a tile that crosses the diagonal each
// thread looks at the V that it copied, and if any of it is NaN or infinite (`special`), it is left
// out of P·V and then added key by key to the rows that see it.
//
// Budget at head_dim 128: 32 KiB for Q, 2 stages of 32 KiB, 128 threads, 2 blocks to a
// multiprocessor; a thread has 128 registers of a and 64 of S, and little room for anything else: Q
// is read again for each tile, and what describes the block lies in shared memory.
//
// Numerics: fp32 scores, maxima and sums; differences before the scale (cuda_parts.cuh); P is
// rounded to the input type for P·V only; one rounding at the end. Split keys are merged in order.
#include "ops/attention/cuda_mma_tile.cuh"

namespace me {
namespace {

//                     D   rows Mi keys BN stages resident
using Tall64 = Config<64, 4, 2, 1, 64, 2, 2>;
using Tall128 = Config<128, 4, 2, 1, 64, 2, 2>;
using Tall256 = Config<256, 8, 1, 1, 32, 2, 1>;
using Flat64 = Config<64, 1, 1, 4, 64, 4, 3>;
using Flat128 = Config<128, 1, 1, 4, 64, 3, 2>;
using Flat256 = Config<256, 1, 1, 4, 64, 2, 1>;

// ---- results ----

// Tall blocks: each warp has whole rows.
template <class C, class T>
__device__ void store_rows(const AttentionParams& p, const AttentionBlock& b, Warp<C, T>& warp) {
  warp.add_sums_of_quad();
  const int pair = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp.row_at(i, half);
      if (b.row_begin + row >= p.grid.rows) continue;
      const RowSink<T> sink(p, b, row, {warp.row_max[i][half], warp.row_sum[i][half]}, pair == 0);
#pragma unroll
      for (int n = 0; n < C::kD / 8; ++n) {
        sink.store(n * 8 + 2 * pair, warp.acc[i][n][2 * half], warp.acc[i][n][2 * half + 1]);
      }
    }
  }
}

// Flat blocks: the warps' sums over their keys meet in shared memory and are merged in order.
template <class C, class T>
__device__ void merge_and_store_rows(const AttentionParams& p, const AttentionBlock& b,
                                     Warp<C, T>& warp, float* shared) {
  constexpr int kWarpFloats = C::kBM * (C::kPitch + 2);
  const int pair = static_cast<int>(threadIdx.x) % 4;
  float* const mine = shared + threadIdx.x / 32 * kWarpFloats;
  warp.add_sums_of_quad();
  __syncthreads();  // nobody reads a stage any more
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp.row_at(0, half);
#pragma unroll
    for (int n = 0; n < C::kD / 8; ++n) {
      *reinterpret_cast<float2*>(mine + row * C::kPitch + n * 8 + 2 * pair) =
          make_float2(warp.acc[0][n][2 * half], warp.acc[0][n][2 * half + 1]);
    }
    if (pair == 0) {
      mine[C::kBM * C::kPitch + row] = warp.row_max[0][half];
      mine[C::kBM * C::kPitch + C::kBM + row] = warp.row_sum[0][half];
    }
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int row = static_cast<int>(threadIdx.x) / 32; row < C::kBM; row += C::kKeyWarps) {
    if (b.row_begin + row >= p.grid.rows) return;
    Normalizer all;
    float factor[C::kKeyWarps];
#pragma unroll
    for (int w = 0; w < C::kKeyWarps; ++w) {
      all.max = fmaxf(all.max, shared[w * kWarpFloats + C::kBM * C::kPitch + row]);
    }
#pragma unroll
    for (int w = 0; w < C::kKeyWarps; ++w) {
      const float* sums = shared + w * kWarpFloats + C::kBM * C::kPitch + row;
      factor[w] = rescale(sums[0], all.max, p.scale_log2);
      all.sum += factor[w] * sums[C::kBM];
    }
    const RowSink<T> sink(p, b, row, all, lane == 0);
    for (int column = 2 * lane; column < p.value_dim; column += 64) {
      float2 sum = {0, 0};
#pragma unroll
      for (int w = 0; w < C::kKeyWarps; ++w) {
        const float2 x =
            *reinterpret_cast<const float2*>(shared + w * kWarpFloats + row * C::kPitch + column);
        sum.x += factor[w] * x.x;
        sum.y += factor[w] * x.y;
      }
      sink.store(column, sum.x, sum.y);
    }
  }
}

template <class C, class T>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    attention_mma(const __grid_constant__ AttentionParams p, int64_t first_block) {
  extern __shared__ __align__(1024) uint8_t shared[];  // lines at multiples of their length
  auto& block = *reinterpret_cast<SharedBlock*>(shared + C::kBlockOffset);
  if (threadIdx.x == 0) {
    block.block = p.grid.block(first_block + blockIdx.x);
    block.tiles = static_cast<int>(block.block.tile_end - block.block.tile_begin);
    block.k = head_of<uint16_t>(p.k, block.block);
    block.v = head_of<uint16_t>(p.v, block.block);
  }
  __syncthreads();
  const AttentionBlock& b = block.block;
  const uint32_t q = shared_address(shared);
  const uint32_t stages = q + C::kQBytes;
  const auto copy = [&](int tile) {
    if (tile < block.tiles) {
      const uint32_t to = stages + tile % C::kStages * C::kStageBytes;
      const int64_t first = (b.tile_begin + tile) * C::kBN;
      const auto left = static_cast<int>(min(p.grid.mask.kv_len - first, int64_t{C::kBN}));
      copy_tile<C>(p, p.k, block.k, p.head_dim, first, left, to);
      copy_tile<C>(p, p.v, block.v, p.value_dim, first, left, to + C::kTileBytes);
    }
    cp_async_commit();
  };

  if (block.tiles > 0) copy_queries<C>(p, b, q);
#pragma unroll
  for (int i = 0; i < C::kStages - 1; ++i) copy(i);  // the first also commits the queries
  Warp<C, T> warp(q);
  for (int tile = 0; tile < block.tiles; ++tile) {
    const uint32_t at = stages + tile % C::kStages * C::kStageBytes;
    cp_async_wait<C::kStages - 2>();  // this thread's copies of the tile
    const bool masks = b.tile_begin + tile >= b.full_tiles;
    bool special = false;
    // Everybody's copies are there, and nobody reads the stage of the tile before any more.
    if (masks && p.grid.mask.causal) {
      special = __syncthreads_or(any_special<C, T>(p, p.v, at + C::kTileBytes)) != 0;
    } else {
      __syncthreads();
    }
    copy(tile + C::kStages - 1);
    if (tile == 0) warp.keep_q();
    warp.attend(p, b, at, tile, masks, special);
  }
  if constexpr (C::kKeyWarps > 1) {
    merge_and_store_rows<C, T>(p, b, warp, reinterpret_cast<float*>(shared));
  } else {
    store_rows<C, T>(p, b, warp);
  }
}

// ---- host ----

// f(Config()) for the narrowest one that holds `dim` columns.
template <class F>
decltype(auto) with_config(int64_t dim, bool flat, F&& f) {
  if (flat) {
    if (dim <= 64) return f(Flat64());
    if (dim <= 128) return f(Flat128());
    return f(Flat256());
  }
  if (dim <= 64) return f(Tall64());
  if (dim <= 128) return f(Tall128());
  return f(Tall256());
}

struct Choice {
  AttentionGrid grid;
  int64_t dim = 0;  // the larger of head_dim and value_dim
  bool flat = false;
  bool async = false;
  int64_t shared_bytes = 0;
};

constexpr int64_t kMinKeysPerPart = 256;  // below that, the merge costs more than it saves

Choice choose(const Problem& problem) {
  const AttentionSizes s = attention_sizes(problem);
  Choice c;
  c.dim = std::max(s.head_dim, s.value_dim);
  c.async = rows_are_aligned(problem.inputs[0]) && rows_are_aligned(problem.inputs[1]) &&
            rows_are_aligned(problem.inputs[2]);
  c.flat = s.q_len * s.group <= 16;
  if (c.flat) {  // where its deeper ring has the memory
    with_config(c.dim, true, [&](auto config) {
      c.flat = decltype(config)::kSharedBytes <= problem.device.shared_bytes;
    });
  }
  with_config(c.dim, c.flat, [&](auto config) {
    using C = decltype(config);
    c.shared_bytes = C::kSharedBytes;
    c.grid = attention_grid(s.mask, s.batch * s.kv_heads, s.kv_heads, s.group, s.q_len, C::kBM,
                            C::kBN, int64_t{problem.device.multiprocessors} * C::kResident,
                            kMinKeysPerPart / C::kBN);
  });
  return c;
}

Support supports(const Problem& problem) {
  const AttentionSizes s = attention_sizes(problem);
  if (problem.inputs[0].dtype == DType::kF32) return Support::no("takes fp16 and bf16 only");
  if (problem.device.compute_capability < 80) return Support::no("needs compute capability 8.0");
  if (s.group > kMaxAttentionGroup) return Support::no("more query heads to a key head than 2^30");
  const Choice c = choose(problem);
  if (c.shared_bytes > problem.device.shared_bytes) {
    return Support::no("needs " + std::to_string(c.shared_bytes) +
                       " bytes of shared memory, the device has " +
                       std::to_string(problem.device.shared_bytes));
  }
  const Work work = problem.op->work(problem);
  // Of a multiprocessor, what is reached in practice, flop/µs; and bytes/µs of a device.
  const double rate = c.async ? 2.2e6 : 0.5e6;
  const double cost_us =
      4 + std::max(work.flops / (rate * problem.device.multiprocessors), work.bytes / 3e6);
  return Support::yes(cost_us, std::string(c.flat ? "flat" : "tall") +
                                   (c.async ? ", cp.async, " : ", strided, ") + describe(c.grid));
}

int64_t workspace_bytes(const Problem& problem) {
  AttentionParams p;
  p.grid = choose(problem).grid;
  p.value_dim = static_cast<int32_t>(attention_sizes(problem).value_dim);
  return p.parts_bytes();
}

template <class T>
std::unique_ptr<PreparedOp> prepare_as(const Choice& c, const AttentionParams& p) {
  return with_config(c.dim, c.flat, [&](auto config) -> std::unique_ptr<PreparedOp> {
    using C = decltype(config);
    allow_shared_bytes(attention_mma<C, T>, C::kSharedBytes);
    load_kernel(attention_mma<C, T>);
    load_kernel(attention_merge<T>);
    return make_prepared([p](void* stream) {
      launch_in_grids(p.grid.blocks(), [&](int64_t first, unsigned blocks) {
        attention_mma<C, T>
            <<<blocks, C::kThreads, C::kSharedBytes, as_cuda_stream(stream)>>>(p, first);
      });
      if (p.grid.splits > 1) launch_merge<T>(p, as_cuda_stream(stream));
    });
  });
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& problem, const Buffers& buffers) {
  if (problem.outputs[0].count() == 0) return make_prepared([](void*) {});
  const Choice c = choose(problem);
  AttentionParams p = attention_params(problem, c.grid, buffers);
  p.async = c.async;
  if (problem.inputs[0].dtype == DType::kF16) return prepare_as<__half>(c, p);
  return prepare_as<__nv_bfloat16>(c, p);
}

}  // namespace

extern const KernelEntry attention_cuda_mma;
const KernelEntry attention_cuda_mma = {
    .op = "attention",
    .name = "attention_cuda_mma",
    .backend = Backend::kCuda,
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
};

}  // namespace me
