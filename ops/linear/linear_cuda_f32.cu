// linear_cuda_f32: Y = act(X·W + b) for fp32, by fused multiply-adds: true fp32, no TF32. Any
// shape, any stride. linear_cuda_tf32: the same on the tensor cores, for models that allow TF32.
//
// A block computes a tile of Y, BM x BN, over all of K or one part of it, in steps of BK. A step's
// operands lie in shared memory with K outermost, [BK][BM + pad] of X and [BK][BN + pad] of W; for
// each k a thread multiplies TM values of the one with TN of the other into TM·TN accumulators:
//
//      warp: 4 x 8 lanes                  thread of an 8x8 tile: runs of 4 at two places of the
//      n ->  0  1  2 ..  7                block's tile, half a tile apart, so that the lanes of a
//      m  0  0  2  4    14                warp read neighbouring 16-byte runs (64 bytes of X, 128
//      |  1  1  3  5    15                of W), each without bank conflicts. Neighbouring lanes
//         2 16 18 20    30                share runs: else 16-byte loads take twice as long
//         3 17 19 21    31
//
// Stages of such steps are on their way, brought by cp.async: element by element where neighbours
// of K lie closer in memory, 8 of K from 4 rows to a warp, which the pitch puts into 32 different
// banks; and in runs of 4 along the rows where those are closer (a template parameter per operand),
// as 16 bytes where they are aligned and the tile is whole. One barrier a step. Elements past M, N
// or K are zeros, in both operands.
//
// Budget of 128x128x16: 3 stages of 16.5 KiB; 64 accumulators and 16 operands per thread; 256
// threads, 128 registers, 2 blocks to a multiprocessor.
//
// With TF32 a warp has four by four products of 16x8x8 (mma.sync). It reads its elements one by
// one, and rounds each to TF32 (to nearest, ties away from zero) on the way.
//
// Numerics: fp32 accumulation along K in order; K in several parts (small M·N) leaves their sums in
// the workspace, and linear_reduce adds them in order. Bias and activation in fp32, one rounding.
#include <type_traits>

#include "ops/linear/cuda_operands.cuh"

namespace me {
namespace {

constexpr int kQuad = 4;

template <int kBM_, int kBN_, int kBK_, int kTM_, int kTN_, int kStages_, int kResident_,
          bool kTf32_ = false>
struct Config {
  static constexpr int kBM = kBM_, kBN = kBN_, kBK = kBK_;
  static constexpr int kTM = kTM_, kTN = kTN_;  // of a thread
  static constexpr int kThreads = kBM / kTM * (kBN / kTN);
  static constexpr int kStages = kStages_;
  static constexpr int kResident = kResident_;  // blocks on a multiprocessor
  static constexpr bool kTf32 = kTf32_;
  static constexpr int kPad = kTf32 ? 8 : kQuad;  // floats between lines
  static constexpr int kXFloats = kBK * (kBM + kPad);
  static constexpr int kStageFloats = kXFloats + kBK * (kBN + kPad);
  static constexpr int kSharedBytes = kStages * kStageFloats * 4;
};

//                       BM   BN  BK TM TN stages resident
using Large = Config<128, 128, 16, 8, 8, 3, 2>;
using Small = Config<64, 64, 16, 4, 4, 4, 3>;
using Skinny = Config<16, 128, 32, 4, 4, 3, 3>;
using Thin = Config<8, 128, 32, 4, 4, 3, 4>;
using Tf32 = Config<128, 128, 16, 8, 8, 4, 1, true>;
using SmallTf32 = Config<64, 64, 16, 8, 8, 4, 4, true>;

// A thread's part of one operand's stages.
template <class C, int kRows, bool kAlongRows>
struct Copier {
  static constexpr int kPitch = kRows + C::kPad;
  // Along K: one k in 8 of one row in kRowStep.
  static constexpr int kEight = 8;
  static constexpr int kRowStep = C::kThreads / kEight;
  // Along rows: one quad of a line, of one line in kLineStep.
  static constexpr int kQuads = kRows / kQuad;
  static constexpr int kLineStep = C::kThreads / kQuads;
  static_assert(kRows % kRowStep == 0 && C::kBK % kEight == 0);
  static_assert(C::kThreads % kQuads == 0 && C::kBK % kLineStep == 0);

  const LinearOperand& operand;
  int64_t row0;       // the tile's first
  const float* from;  // first element of the next stage, in row 0 where rows have no one step
  int64_t stride;     // along K
  int64_t row_step;   // along rows
  int row, k;         // in a stage: of the first element
  int rows_left;      // from the tile's first on
  int spread;         // along rows: between a quad's rows, which are neighbours if aligned
  bool simple;        // no row is outside; quads are aligned, or neighbours along K are in memory

  __device__ Copier(const LinearOperand& of, int64_t first_row, int64_t row_count,
                    const LinearBlock& block)
      : operand(of), row0(first_row) {
    const int thread = static_cast<int>(threadIdx.x);
    stride = operand.rows.stride;
    row_step = operand.rows.leading.strides[0];
    rows_left = static_cast<int>(min(int64_t{kRows}, row_count - row0));
    spread = operand.row_aligned ? 1 : kQuads;
    row = kAlongRows ? thread % kQuads * (operand.row_aligned ? kQuad : 1) : thread / kEight;
    k = kAlongRows ? thread / kQuads : thread % kEight;
    from = static_cast<const float*>(operand.data) + (block.k_begin + k) * stride;
    if (affine()) from += (row0 + row) * row_step;
    simple = rows_left == kRows && (kAlongRows ? operand.row_aligned : affine() && stride == 1);
  }

  // Starts to bring the next stage, which has `k_left` elements of K or more than BK, to `to`.
  __device__ void fetch(uint32_t to, int k_left) {
    to += (k * kPitch + row) * 4;
    if (simple && k_left >= C::kBK) {
      fetch_whole(to);
    } else {
      fetch_edge(to, k_left);
    }
    from += C::kBK * stride;
  }

 private:
  __device__ bool affine() const { return kAlongRows || operand.rows.leading.shape.rank() <= 1; }

  __device__ void fetch_whole(uint32_t to) const {
    const float* at = from;
    if constexpr (kAlongRows) {
#pragma unroll
      for (int line = 0; line < C::kBK; line += kLineStep) {
        cp_async_16(to + line * kPitch * 4, at);
        at += kLineStep * stride;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRows; i += kRowStep) {
#pragma unroll
        for (int line = 0; line < C::kBK; line += kEight) {
          cp_async_4(to + (line * kPitch + i) * 4, at + line);
        }
        at += kRowStep * row_step;
      }
    }
  }

  // Not unrolled: the registers are needed elsewhere.
  __device__ void fetch_edge(uint32_t to, int k_left) const {
    if constexpr (kAlongRows) {
#pragma unroll 1
      for (int line = 0; line < C::kBK; line += kLineStep) {
#pragma unroll 1
        for (int i = 0; i < kQuad; ++i) {
          const int step = i * spread;
          cp_async_4(to + (line * kPitch + step) * 4, from + line * stride + step * row_step,
                     k + line < k_left && row + step < rows_left);
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kRows; i += kRowStep) {
        const bool inside = row + i < rows_left;
        const int64_t step =
            affine() ? i * row_step : operand.rows.offset(row0 + (inside ? row + i : 0));
#pragma unroll 1
        for (int line = 0; line < C::kBK; line += kEight) {
          cp_async_4(to + (line * kPitch + i) * 4, from + step + line * stride,
                     inside && k + line < k_left);
        }
      }
    }
  }
};

// A run of one row of Y, whose first column is n, finished and stored.
template <int kCount>
__device__ void store_run(const LinearParams& p, const LinearBlock& block, int64_t m, int64_t n,
                          const float (&acc)[kCount], const float (&bias)[kCount]) {
  const LinearEpilogue& e = p.epilogue;
  const int count = static_cast<int>(min(int64_t{kCount}, p.grid.n - n));
  if (m >= p.grid.m || count <= 0) return;
  void* const y =
      p.part_elements == 0 ? e.y : static_cast<float*>(e.y) + block.split * p.part_elements;
  float values[kCount];
#pragma unroll
  for (int c = 0; c < kCount; ++c) values[c] = finish(e, acc[c], bias[c]);
  store_values(e, y, e.rows.offset(m) + n * e.rows.stride, values, count);
}
template <int kCount>
__device__ void load_bias(const LinearParams& p, int64_t n, float (&bias)[kCount]) {
#pragma unroll
  for (int c = 0; c < kCount; ++c) bias[c] = n + c < p.grid.n ? bias_at(p.epilogue, n + c) : 0.0f;
}

// A thread's part of a tile by fused multiply-adds.
template <class C>
class FmaTile {
  static constexpr int kLanesM = C::kBM / C::kTM < 4 ? C::kBM / C::kTM : 4;
  static constexpr int kLanesN = 32 / kLanesM;
  static constexpr int kWarpsN = C::kBN / C::kTN / kLanesN;
  static_assert(C::kBM / C::kTM % kLanesM == 0 && C::kBN / C::kTN % kLanesN == 0);
  static constexpr int kStepM = C::kBM / (C::kTM / kQuad);  // between a thread's runs
  static constexpr int kStepN = C::kBN / (C::kTN / kQuad);

 public:
  __device__ FmaTile() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int lane_m = kLanesM == 2 ? lane % 2 : lane % 2 + lane / 16 * 2;
    const int lane_n = lane / 2 % kLanesN;
    m_ = (warp / kWarpsN * kLanesM + lane_m) * kQuad;
    n_ = (warp % kWarpsN * kLanesN + lane_n) * kQuad;
  }

  __device__ void multiply(const float* x, const float* w) {
#pragma unroll
    for (int k = 0; k < C::kBK; ++k) {
      float a[C::kTM];
      float b[C::kTN];
      load_runs<kStepM>(a, x + k * (C::kBM + C::kPad) + m_);
      load_runs<kStepN>(b, w + k * (C::kBN + C::kPad) + n_);
#pragma unroll
      for (int i = 0; i < C::kTM; ++i) {
#pragma unroll
        for (int j = 0; j < C::kTN; ++j) acc_[i][j] = fmaf(a[i], b[j], acc_[i][j]);
      }
    }
  }

  __device__ void store(const LinearParams& p, const LinearBlock& block) const {
#pragma unroll
    for (int j = 0; j < C::kTN; j += kQuad) {
      const int64_t n = block.n0 + n_ + j / kQuad * kStepN;
      float bias[kQuad];
      load_bias(p, n, bias);
#pragma unroll
      for (int i = 0; i < C::kTM; ++i) {
        const float run[kQuad] = {acc_[i][j], acc_[i][j + 1], acc_[i][j + 2], acc_[i][j + 3]};
        store_run(p, block, block.m0 + m_ + i / kQuad * kStepM + i % kQuad, n, run, bias);
      }
    }
  }

 private:
  // Runs of 4 from `line` on, kStep apart.
  template <int kStep, int kValues>
  __device__ static void load_runs(float (&to)[kValues], const float* line) {
#pragma unroll
    for (int run = 0; run < kValues / kQuad; ++run) {
      const float4 quad = *reinterpret_cast<const float4*>(line + run * kStep);
      to[4 * run] = quad.x, to[4 * run + 1] = quad.y;
      to[4 * run + 2] = quad.z, to[4 * run + 3] = quad.w;
    }
  }

  int m_, n_;  // in the block's tile, of its first run
  float acc_[C::kTM][C::kTN] = {};
};

// A warp's part of a tile by tensor cores: 32 lanes of 8x8 values, as 16x8 products.
template <class C>
class Tf32Tile {
 public:
  __device__ Tf32Tile() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    m_ = warp / kWarpsN * kWarpM + lane / 4;
    n_ = warp % kWarpsN * kWarpN + lane / 4;
    k_ = lane % 4;
  }

  __device__ void multiply(const float* x, const float* w) {
    constexpr int kXPitch = C::kBM + C::kPad;
    constexpr int kWPitch = C::kBN + C::kPad;
#pragma unroll
    for (int k = 0; k < C::kBK; k += 8) {
      const float* const x_at = x + (k + k_) * kXPitch + m_;
      const float* const w_at = w + (k + k_) * kWPitch + n_;
      uint32_t b[kTilesN][2];
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) b[j][r] = to_tf32(w_at[r * 4 * kWPitch + j * 8]);
      }
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          a[r] = to_tf32(x_at[r / 2 * 4 * kXPitch + i * 16 + r % 2 * 8]);
        }
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) mma_m16n8k8_tf32(acc_[i][j], a, b[j]);
      }
    }
  }

  __device__ void store(const LinearParams& p, const LinearBlock& block) const {
    const int column = n_ - static_cast<int>(threadIdx.x) % 32 / 4 + k_ * 2;
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
      const int64_t n = block.n0 + column + j * 8;
      float bias[2];
      load_bias(p, n, bias);
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float run[2] = {acc_[i][j][2 * h], acc_[i][j][2 * h + 1]};
          store_run(p, block, block.m0 + m_ + i * 16 + h * 8, n, run, bias);
        }
      }
    }
  }

 private:
  static constexpr int kWarpM = 64, kWarpN = 32;
  static constexpr int kWarpsN = C::kBN / kWarpN;
  static constexpr int kTilesM = kWarpM / 16, kTilesN = kWarpN / 8;
  static_assert(C::kThreads == C::kBM / kWarpM * kWarpsN * 32);

  int m_, n_, k_;  // of the first element that this lane reads of X and of W
  float acc_[kTilesM][kTilesN][4] = {};
};

template <class C, bool kXAlongRows, bool kWAlongRows>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    linear_f32(const __grid_constant__ LinearParams p) {
  extern __shared__ __align__(16) float stages[];  // of [BK][BM + pad], [BK][BN + pad]
  const LinearBlock block = find_block(p.grid, C::kBM, C::kBN);
  Copier<C, C::kBM, kXAlongRows> x(p.x, block.m0, p.grid.m, block);
  Copier<C, C::kBN, kWAlongRows> w(p.w, block.n0, p.grid.n, block);
  std::conditional_t<C::kTf32, Tf32Tile<C>, FmaTile<C>> tile;

  int64_t k_left = block.k_end - block.k_begin;  // that no fetch has begun
  const int64_t steps = (k_left + C::kBK - 1) / C::kBK;
  const auto fetch = [&](int stage) {
    if (k_left > 0) {
      const uint32_t to = shared_address(stages + stage * C::kStageFloats);
      const int left = static_cast<int>(min(k_left, int64_t{C::kBK}));
      x.fetch(to, left);
      w.fetch(to + C::kXFloats * 4, left);
    }
    k_left -= C::kBK;
    cp_async_commit();  // one with nothing in it counts as well
  };
  for (int stage = 0; stage < C::kStages - 1; ++stage) fetch(stage);
  int stage = 0;
#pragma unroll 1
  for (int64_t s = 0; s < steps; ++s) {
    cp_async_wait<C::kStages - 2>();
    __syncthreads();  // everyone's elements of this step are there, and the step before is read
    fetch(stage == 0 ? C::kStages - 1 : stage - 1);
    const float* const from = stages + stage * C::kStageFloats;
    tile.multiply(from, from + C::kXFloats);
    stage = stage == C::kStages - 1 ? 0 : stage + 1;
  }
  tile.store(p, block);
}

// ---- host ----

template <class C>
constexpr LinearTile tile_of(std::string_view name, double rate) {
  return {name, C::kBM, C::kBN, C::kBK, C::kSharedBytes, C::kResident, rate, 0.4};
}
constexpr LinearTile kTiles[] = {
    tile_of<Large>("128x128x16", 0.8),
    tile_of<Small>("64x64x16", 0.55),
    tile_of<Skinny>("16x128x32", 0.5),
    tile_of<Thin>("8x128x32", 0.4),
};
constexpr LinearTile kTf32Tiles[] = {
    tile_of<Tf32>("128x128x16", 0.11),
    tile_of<SmallTf32>("64x64x16", 0.1),
};
// Of an H200's multiprocessor: 128 fused multiply-adds a clock, and 1024 of TF32.
constexpr double kFlopsPerUs = 0.5e6;
constexpr double kTf32FlopsPerUs = 4e6;

template <bool kTf32>
std::vector<LinearChoice> choices(const Problem& p) {
  return kTf32 ? tilings(p, kTf32Tiles, kTf32FlopsPerUs) : tilings(p, kTiles, kFlopsPerUs);
}

template <class C>
LinearKernel kernel_as(bool x_along_rows, bool w_along_rows) {
  if (x_along_rows) {
    return {w_along_rows ? linear_f32<C, true, true> : linear_f32<C, true, false>, C::kThreads};
  }
  return {w_along_rows ? linear_f32<C, false, true> : linear_f32<C, false, false>, C::kThreads};
}

template <bool kTf32>
LinearKernel kernel_of(const LinearChoice& choice, bool x_along_rows, bool w_along_rows) {
  if constexpr (kTf32) {
    return choice.index == 0 ? kernel_as<Tf32>(x_along_rows, w_along_rows)
                             : kernel_as<SmallTf32>(x_along_rows, w_along_rows);
  } else {
    return choice.index == 0   ? kernel_as<Large>(x_along_rows, w_along_rows)
           : choice.index == 1 ? kernel_as<Small>(x_along_rows, w_along_rows)
           : choice.index == 2 ? kernel_as<Skinny>(x_along_rows, w_along_rows)
                               : kernel_as<Thin>(x_along_rows, w_along_rows);
  }
}

template <bool kTf32>
Support supports(const Problem& p) {
  if (p.inputs[0].dtype != DType::kF32) {
    return Support::no("takes f32, found " + std::string(name_of(p.inputs[0].dtype)));
  }
  if (kTf32 && !may_use_tf32(p)) return Support::no("the model does not allow TF32");
  return support_of(p, choices<kTf32>(p), kTf32 ? "TF32 products" : "fp32 multiply-adds");
}

template <bool kTf32>
std::vector<KernelConfig> configs(const Problem& p) {
  return configs_of(choices<kTf32>(p));
}

template <bool kTf32>
int64_t workspace_bytes(const Problem& p) {
  return split_workspace_bytes(p, *choose(p, choices<kTf32>(p)));
}

template <bool kTf32>
Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  const LinearChoice choice = *choose(p, choices<kTf32>(p));
  const LinearKernel kernel =
      kernel_of<kTf32>(choice, x_operand(p, nullptr).row_closer, w_operand(p, nullptr).row_closer);
  return prepare_linear(p, buffers, choice, kernel);
}

template <bool kTf32>
constexpr KernelEntry entry(std::string_view name) {
  return {.op = "linear",
          .name = name,
          .backend = Backend::kCuda,
          .supports = supports<kTf32>,
          .configs = configs<kTf32>,
          .workspace_bytes = workspace_bytes<kTf32>,
          .prepare = prepare<kTf32>};
}

}  // namespace

extern const KernelEntry linear_cuda_f32;
const KernelEntry linear_cuda_f32 = entry<false>("linear_cuda_f32");
extern const KernelEntry linear_cuda_tf32;
const KernelEntry linear_cuda_tf32 = entry<true>("linear_cuda_tf32");

}  // namespace me
