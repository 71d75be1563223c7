// linear_cuda_f32: Y = act(X·W + b) for fp32, by fused multiply-adds: true fp32, no TF32. Any
// shape, any stride.
//
// A block computes a tile of Y, BM x BN, over all of K or one part of it, in steps of BK. A step's
// operands lie in shared memory with K outermost, [BK][BM] of X and [BK][BN] of W; for each k a
// thread multiplies TM values of the one with TN of the other into TM·TN accumulators:
//
//      warp: 4 x 8 lanes                  thread of an 8x8 tile: runs of 4 at two places of the
//      n ->  0  1  2 ..  7                block's tile, half a tile apart, so that the lanes of a
//      m  0  .  .  .     .                warp read neighbouring 16-byte runs (64 bytes of X, 128
//      |  3  .  .  .     .                of W), each without bank conflicts
//
// There are two such buffers. A thread loads its quads (4 elements) of the next step into registers
// before it computes the present one, and stores them to the other buffer after: one barrier a
// step. A quad runs along K or along the rows, whichever are closer in memory (a template parameter
// per operand); it is one 16-byte load where it is aligned and whole, else element by element.
// Elements past M, N or K are zeros, in both operands.
//
// A quad along K is stored as 4 elements a pitch apart. The pitch, rows + 4, puts quads that follow
// each other along K 16 banks apart; the XOR of `column` keeps the rest of a warp's quads apart
// too.
//
// Budget of 128x128x8: 2 buffers of 8.25 KiB; 64 accumulators, 16 operands and 8 elements on their
// way per thread (a deeper step has no registers for them); 256 threads, 128 registers, 2 blocks to
// a multiprocessor.
//
// Numerics: fp32 accumulation along K in order; K in several parts (small M·N) leaves their sums in
// the workspace, and linear_reduce adds them in order. Bias and activation in fp32, one rounding.
#include "ops/linear/cuda_operands.cuh"

namespace me {
namespace {

constexpr int kQuad = 4;
constexpr int kLanesM = 4, kLanesN = 8;

template <int kBM_, int kBN_, int kBK_, int kTM_, int kTN_, int kResident_>
struct Config {
  static constexpr int kBM = kBM_, kBN = kBN_, kBK = kBK_;
  static constexpr int kTM = kTM_, kTN = kTN_;  // of a thread
  static constexpr int kThreads = kBM / kTM * (kBN / kTN);
  static constexpr int kResident = kResident_;  // blocks on a multiprocessor
  static constexpr int kWarpsN = kBN / kTN / kLanesN;
  static constexpr int kStepM = kBM / (kTM / kQuad);  // between a thread's runs
  static constexpr int kStepN = kBN / (kTN / kQuad);
  static constexpr int kBuffer = kBK * (kBM + 4 + kBN + 4);  // floats
  static constexpr int kSharedBytes = 2 * kBuffer * 4;
  static_assert(kBM / kTM % kLanesM == 0 && kBN / kTN % kLanesN == 0);
  static_assert(kBK == 8 || kBK == 16 || kBK == 32);
};

//                       BM   BN  BK TM TN resident
using Large = Config<128, 128, 8, 8, 8, 2>;
using Small = Config<64, 64, 16, 4, 4, 3>;
using Skinny = Config<16, 128, 32, 4, 4, 3>;

// Where row `row` of an operand lies in the line of k. A warp stores 32 / (BK / 4) rows of quads
// along K: 8 of them for BK = 16, 4 for BK = 32, and 16, which need no XOR, for BK = 8.
template <class C>
__host__ __device__ constexpr int column(int k, int row) {
  return row ^ (k / 8 % 4 * (C::kBK == 16 ? 8 : 4));
}

// A thread's quads of one operand.
template <class C, int kRows, bool kAlongRows>
struct Copier {
  static constexpr int kPitch = kRows + 4;
  static constexpr int kCount = kRows * C::kBK / kQuad / C::kThreads;
  static constexpr int kLine = kAlongRows ? kRows / kQuad : C::kBK / kQuad;  // quads in a line
  static constexpr int kStep = C::kThreads / kLine;  // lines between a thread's quads
  static constexpr int kPointers = kAlongRows ? 1 : kCount;
  static_assert(kCount * C::kThreads * kQuad == kRows * C::kBK && C::kThreads % kLine == 0);

  // Where quads start: each along K; only the first along rows, where the others are steps away.
  const float* from[kPointers];
  int64_t stride;    // along K
  int64_t row_step;  // along rows
  int inside = 0;    // along rows: how many of the 4 are; along K: a bit per quad
  bool wide;
  float raw[kCount][kQuad];

  __device__ static int line() { return static_cast<int>(threadIdx.x) / kLine; }
  __device__ static int quad() { return static_cast<int>(threadIdx.x) % kLine * kQuad; }

  __device__ Copier(const LinearOperand& operand, int64_t row0, int64_t row_count,
                    const LinearBlock& block) {
    stride = operand.rows.stride;
    row_step = operand.rows.leading.strides[0];
    wide = kAlongRows ? operand.row_aligned : operand.k_aligned;
    const int64_t k = block.k_begin + (kAlongRows ? line() : quad());
    const auto* const data = static_cast<const float*>(operand.data) + k * stride;
    if constexpr (kAlongRows) {
      const int64_t row = row0 + quad();
      inside = static_cast<int>(max(int64_t{0}, min(int64_t{kQuad}, row_count - row)));
      from[0] = data + row * row_step;
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int64_t row = row0 + line() + i * kStep;
        inside |= (row < row_count ? 1 : 0) << i;
        from[i] = data + operand.rows.offset(row < row_count ? row : 0);
      }
    }
  }

  // Starts the loads of the next step, which has `k_left` elements of K (or more than BK); nothing
  // waits for them until store().
  __device__ void fetch(int k_left) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      int count;  // of the quad's elements
      if constexpr (kAlongRows) {
        count = line() + i * kStep < k_left ? inside : 0;
      } else {
        const int left = k_left - quad();
        count = (inside >> i & 1) == 0 || left <= 0 ? 0 : min(left, kQuad);
      }
      const float* const start = kAlongRows ? from[0] + i * kStep * stride : from[i];
      if (wide && count == kQuad) {
        const float4 quad = *reinterpret_cast<const float4*>(start);
        raw[i][0] = quad.x, raw[i][1] = quad.y, raw[i][2] = quad.z, raw[i][3] = quad.w;
      } else {
#pragma unroll
        for (int j = 0; j < kQuad; ++j) {
          const float* const at = start + j * (kAlongRows ? row_step : stride);
          raw[i][j] = j < count ? *at : 0.0f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kPointers; ++i) from[i] += C::kBK * stride;
  }

  __device__ void store(float* to) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kAlongRows) {
        const int k = line() + i * kStep;
        *reinterpret_cast<float4*>(to + k * kPitch + column<C>(k, quad())) = {raw[i][0], raw[i][1],
                                                                              raw[i][2], raw[i][3]};
      } else {
        const int at = column<C>(quad(), line() + i * kStep);  // the same for the quad's 4 k
#pragma unroll
        for (int j = 0; j < kQuad; ++j) to[(quad() + j) * kPitch + at] = raw[i][j];
      }
    }
  }
};

template <class C>
using Accumulators = float[C::kTM][C::kTN];

// kRuns·4 values of a line, from `first` in each run.
template <class C, int kValues, int kStep>
__device__ void load_values(float (&to)[kValues], const float* line, int k, int first) {
#pragma unroll
  for (int run = 0; run < kValues / kQuad; ++run) {
    const float4 quad = *reinterpret_cast<const float4*>(line + column<C>(k, first) + run * kStep);
    to[4 * run] = quad.x, to[4 * run + 1] = quad.y;
    to[4 * run + 2] = quad.z, to[4 * run + 3] = quad.w;
  }
}

template <class C>
__device__ void multiply(Accumulators<C>& acc, const float* x, const float* w, int tm, int tn) {
#pragma unroll
  for (int k = 0; k < C::kBK; ++k) {
    float a[C::kTM];
    float b[C::kTN];
    load_values<C, C::kTM, C::kStepM>(a, x + k * (C::kBM + 4), k, tm * kQuad);
    load_values<C, C::kTN, C::kStepN>(b, w + k * (C::kBN + 4), k, tn * kQuad);
#pragma unroll
    for (int i = 0; i < C::kTM; ++i) {
#pragma unroll
      for (int j = 0; j < C::kTN; ++j) acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
    }
  }
}

template <class C>
__device__ void finish_block(const LinearParams& p, const LinearBlock& block,
                             const Accumulators<C>& acc, int tm, int tn) {
  const LinearEpilogue& e = p.epilogue;
  void* const y =
      p.part_elements == 0 ? e.y : static_cast<float*>(e.y) + block.split * p.part_elements;
#pragma unroll
  for (int j = 0; j < C::kTN; j += kQuad) {
    const int64_t n = block.n0 + tn * kQuad + j / kQuad * C::kStepN;
    const int count = static_cast<int>(min(int64_t{kQuad}, p.grid.n - n));
    float bias[kQuad];
#pragma unroll
    for (int c = 0; c < kQuad; ++c) bias[c] = c < count ? bias_at(e, n + c) : 0.0f;
#pragma unroll
    for (int i = 0; i < C::kTM; ++i) {
      const int64_t m = block.m0 + tm * kQuad + i / kQuad * C::kStepM + i % kQuad;
      if (m >= p.grid.m || count <= 0) continue;
      float values[kQuad];
#pragma unroll
      for (int c = 0; c < kQuad; ++c) values[c] = finish(e, acc[i][j + c], bias[c]);
      store_values(e, y, e.rows.offset(m) + n * e.rows.stride, values, count);
    }
  }
}

template <class C, bool kXAlongRows, bool kWAlongRows>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    linear_f32(const __grid_constant__ LinearParams p) {
  extern __shared__ __align__(16) float buffers[];  // [2]: [BK][BM + 4], [BK][BN + 4]
  const LinearBlock block = find_block(p.grid, C::kBM, C::kBN);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tm = warp / C::kWarpsN * kLanesM + lane / kLanesN;
  const int tn = warp % C::kWarpsN * kLanesN + lane % kLanesN;
  Copier<C, C::kBM, kXAlongRows> x(p.x, block.m0, p.grid.m, block);
  Copier<C, C::kBN, kWAlongRows> w(p.w, block.n0, p.grid.n, block);
  Accumulators<C> acc = {};
  constexpr int kW = C::kBK * (C::kBM + 4);  // where W starts in a buffer

  const int64_t k_length = block.k_end - block.k_begin;
  const int64_t steps = (k_length + C::kBK - 1) / C::kBK;
  if (steps > 0) {
    const auto k_left = static_cast<int>(min(k_length, int64_t{C::kBK}));
    x.fetch(k_left);
    w.fetch(k_left);
    x.store(buffers);
    w.store(buffers + kW);
  }
#pragma unroll 1
  for (int64_t s = 0; s < steps; ++s) {
    __syncthreads();  // step s is written, and step s - 1, whose place s + 1 takes, is read
    const float* const buffer = buffers + s % 2 * C::kBuffer;
    const bool more = s + 1 < steps;
    if (more) {
      const auto k_left = static_cast<int>(min(k_length - (s + 1) * C::kBK, int64_t{C::kBK}));
      x.fetch(k_left);
      w.fetch(k_left);
    }
    multiply<C>(acc, buffer, buffer + kW, tm, tn);
    if (more) {
      float* const to = buffers + (s + 1) % 2 * C::kBuffer;
      x.store(to);
      w.store(to + kW);
    }
  }
  finish_block<C>(p, block, acc, tm, tn);
}

// ---- host ----

template <class C>
constexpr LinearTile tile_of(std::string_view name, double rate) {
  return {name, C::kBM, C::kBN, C::kBK, C::kSharedBytes, C::kResident, rate, 0.4};
}
constexpr LinearTile kTiles[] = {
    tile_of<Large>("128x128x8", 0.8),
    tile_of<Small>("64x64x16", 0.55),
    tile_of<Skinny>("16x128x32", 0.5),
};
constexpr double kFlopsPerUs =
    0.5e6;  // of an H200's multiprocessor: 128 fused multiply-adds a clock

LinearChoice choose(const Problem& p) { return choose_tiling(p, kTiles, kFlopsPerUs); }

template <class C>
LinearKernel kernel_as(bool x_along_rows, bool w_along_rows) {
  if (x_along_rows) {
    return {w_along_rows ? linear_f32<C, true, true> : linear_f32<C, true, false>, C::kThreads};
  }
  return {w_along_rows ? linear_f32<C, false, true> : linear_f32<C, false, false>, C::kThreads};
}

LinearKernel kernel_of(const LinearChoice& choice, bool x_along_rows, bool w_along_rows) {
  switch (choice.tile) {
    case 0:
      return kernel_as<Large>(x_along_rows, w_along_rows);
    case 1:
      return kernel_as<Small>(x_along_rows, w_along_rows);
    default:
      return kernel_as<Skinny>(x_along_rows, w_along_rows);
  }
}

Support supports(const Problem& p) {
  if (p.inputs[0].dtype != DType::kF32) {
    return Support::no("takes f32, found " + std::string(name_of(p.inputs[0].dtype)));
  }
  const LinearChoice choice = choose(p);
  if (choice.tile < 0) return Support::no("no tiling fits the device's shared memory and grid");
  return Support::yes(choice.cost_us,
                      "fp32 multiply-adds, " + to_string(choice, kTiles[choice.tile]));
}

int64_t workspace_bytes(const Problem& p) { return split_workspace_bytes(p, choose(p)); }

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  const LinearChoice choice = choose(p);
  const LinearKernel kernel =
      kernel_of(choice, x_operand(p, nullptr).row_closer, w_operand(p, nullptr).row_closer);
  return prepare_linear(p, buffers, choice, kTiles[choice.tile], kernel);
}

}  // namespace

extern const KernelEntry linear_cuda_f32;
const KernelEntry linear_cuda_f32 = {
    .op = "linear",
    .name = "linear_cuda_f32",
    .backend = Backend::kCuda,
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
};

}  // namespace me
