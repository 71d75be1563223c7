// attention_cuda_f32: O = softmax(scale · Q·Kᵀ + mask) · V in true fp32, without tensor cores. Any
// shape and stride.
//
// A block of 256 threads takes BM = 16·R query rows of one head of K (cuda_schedule.h) against its
// key tiles of BN keys. Threads form a grid of 16 x 16: thread (y, x) has rows y·R .. y·R + R - 1
// throughout; the 16 threads of a row are one half of a warp.
//
//   tile:   K [BN][D], V [BN][Dv] -> shared memory, rows padded by 4 floats
//           S [R][BN/16]    keys x, x + 16, ..: 4 floats of each row of Q and K at a time, so that
//                           the 8 threads that an access serves at once read 8 rows of K at a
//                           stride of 4 banks (mod 32), and one row of Q
//           m' = max(m, max S), P = exp(S - m'), f = exp(m - m'), l = f·l + Σ P
//           Pᵀ [BN][BM] -> shared memory: its readers and writers are the same half-warp
//           a [R][Dv/16]    columns 4·x .. + 3, and every 64 on: a = f·a + P·V
//
// R is 4, or 1 for up to 16 rows (decoding). Loads are of 16 bytes where rows are contiguous and
// start at multiples of that, of single elements by any strides otherwise.
//
// Masking is exact: scores of keys that a row does not see become -inf, whatever they are, and P·V
// of the row passes over those keys, so that 0·NaN never arises.
//
// Budget at head_dim 128, R = 4: 33 KiB each for Q, K and V and 17 KiB for P; 32 registers of a, 16
// of S; 1 to 2 blocks to a multiprocessor.
//
// Numerics: fp32 scores, maxima and sums; differences before the scale (cuda_parts.cuh). Split keys
// are merged in order.
#include "ops/attention/cuda_parts.cuh"

namespace me {
namespace {

constexpr int kSide = 16;  // of the grid of threads
constexpr int kThreads = kSide * kSide;

template <int kD_, int kR_, int kBN_, int kResident_>
struct Config {
  static constexpr int kD = kD_;  // head_dim and value_dim, padded
  static constexpr int kR = kR_;  // rows of a thread
  static constexpr int kBN = kBN_;
  static constexpr int kResident = kResident_;  // blocks on a multiprocessor
  static constexpr int kBM = kSide * kR;
  static constexpr int kKeys = kBN / kSide;  // of a thread
  static constexpr int kPitch = kD + 4;      // floats of a row of Q, K or V
  static constexpr int kPPitch = kBM + 4;    // of a row of Pᵀ
  static constexpr int kColumns = kD / 64;   // of a thread, in fours
  static constexpr int kK = kBM * kPitch;    // where K begins, in floats
  static constexpr int kV = kK + kBN * kPitch;
  static constexpr int kP = kV + kBN * kPitch;
  static constexpr int kSharedBytes = (kP + kBN * kPPitch) * static_cast<int>(sizeof(float));
};

using Tall64 = Config<64, 4, 64, 2>;
using Tall128 = Config<128, 4, 64, 1>;
using Tall256 = Config<256, 4, 32, 1>;
using Flat64 = Config<64, 1, 64, 2>;
using Flat128 = Config<128, 1, 64, 2>;
using Flat256 = Config<256, 1, 32, 2>;

// Vectors of 4 in the padded head_dim that head_dim reaches into.
__device__ inline int vectors(int dim) { return (dim + 3) / 4; }

// Columns [4·c, 4·c + 4) of a row, zeros past `columns`.
__device__ inline float4 load_4(const float* row, int64_t stride, int c, int columns,
                                bool aligned) {
  if (aligned && 4 * c + 4 <= columns) return *reinterpret_cast<const float4*>(row + 4 * c);
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = 4 * c + i < columns ? row[(4 * c + i) * stride] : 0.0f;
  return make_float4(x[0], x[1], x[2], x[3]);
}

// Keys [first, first + BN) of K or V; those from `left` on are zeros. Neighbouring threads take
// whatever lies closer together in memory, the columns of a key or the keys of a column.
template <class C>
__device__ void load_tile(const AttentionOperand& x, const AttentionBlock& b, int64_t first,
                          int left, int columns, bool aligned, float* to) {
  const auto* head = head_of<float>(x, b);
  const int width = vectors(columns);
  const bool along_keys = x.stride_row < x.stride_inner;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < C::kBN * width; i += kThreads) {
    const int r = along_keys ? i % C::kBN : i / width;
    const int c = along_keys ? i / C::kBN : i % width;
    float4 value = make_float4(0, 0, 0, 0);
    if (r < left) {
      value = load_4(head + (first + r) * x.stride_row, x.stride_inner, c, columns, aligned);
    }
    *reinterpret_cast<float4*>(to + r * C::kPitch + 4 * c) = value;
  }
}

template <class C>
__device__ void load_queries(const AttentionParams& p, const AttentionBlock& b, bool aligned,
                             float* to) {
  const int width = vectors(p.head_dim);
  const float sign = p.negate ? -1.0f : 1.0f;
  for (int i = static_cast<int>(threadIdx.x); i < C::kBM * width; i += kThreads) {
    const int r = i / width;
    const int c = i % width;
    float4 value = make_float4(0, 0, 0, 0);
    if (b.row_begin + r < p.grid.rows) {
      const auto* row = row_of<const float>(p, p.q, b, p.grid.row(b, static_cast<uint32_t>(r)));
      value = load_4(row, p.q.stride_inner, c, p.head_dim, aligned);
    }
    *reinterpret_cast<float4*>(to + r * C::kPitch + 4 * c) =
        make_float4(sign * value.x, sign * value.y, sign * value.z, sign * value.w);
  }
}

// A thread's share of its rows.
template <class C>
struct Thread {
  float acc[C::kR][C::kColumns][4] = {};
  float row_max[C::kR];
  float row_sum[C::kR] = {};  // of the thread's own keys; the half-warp's are added at the end
  int x, y;

  __device__ Thread()
      : x(static_cast<int>(threadIdx.x) % kSide), y(static_cast<int>(threadIdx.x) / kSide) {
#pragma unroll
    for (int i = 0; i < C::kR; ++i) row_max[i] = kMinusInfinity;
  }

  using Scores = float[C::kR][C::kKeys];

  // Of the thread's rows, in Pᵀ.
  __device__ Vector<float, C::kR>* weights_of(float* weights, int key) const {
    return reinterpret_cast<Vector<float, C::kR>*>(weights + key * C::kPPitch + y * C::kR);
  }

  __device__ void multiply_keys(Scores& s, const float* q, const float* k, int width) const {
#pragma unroll
    for (int i = 0; i < C::kR; ++i) {
#pragma unroll
      for (int j = 0; j < C::kKeys; ++j) s[i][j] = 0;
    }
    q += y * C::kR * C::kPitch;
    k += x * C::kPitch;
#pragma unroll 2
    for (int c = 0; c < width; ++c) {
      float4 left[C::kR];
#pragma unroll
      for (int i = 0; i < C::kR; ++i) {
        left[i] = *reinterpret_cast<const float4*>(q + i * C::kPitch + 4 * c);
      }
#pragma unroll
      for (int j = 0; j < C::kKeys; ++j) {
        const float4 right = *reinterpret_cast<const float4*>(k + j * kSide * C::kPitch + 4 * c);
#pragma unroll
        for (int i = 0; i < C::kR; ++i) {
          s[i][j] = fmaf(left[i].x, right.x, s[i][j]);
          s[i][j] = fmaf(left[i].y, right.y, s[i][j]);
          s[i][j] = fmaf(left[i].z, right.z, s[i][j]);
          s[i][j] = fmaf(left[i].w, right.w, s[i][j]);
        }
      }
    }
  }

  // Turns scores into weights, of which rows see the first limit[i] keys of the tile, leaves them
  // in Pᵀ and brings m, l and a up to date.
  __device__ void weigh(Scores& s, const AttentionParams& p, const int (&limit)[C::kR],
                        float* weights) {
#pragma unroll
    for (int i = 0; i < C::kR; ++i) {
      float max = row_max[i];
#pragma unroll
      for (int j = 0; j < C::kKeys; ++j) {
        if (p.zero_scale) s[i][j] *= 0.0f;
        if (x + j * kSide >= limit[i]) s[i][j] = kMinusInfinity;
        // NaN may get lost in a maximum; its own weight is NaN all the same.
        max = fmaxf(max, s[i][j]);
      }
#pragma unroll
      for (int step = kSide / 2; step > 0; step /= 2) {
        max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
      }
      const float factor = rescale(row_max[i], max, p.scale_log2);
      row_max[i] = max;
      const float shift = shift_of(max);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < C::kKeys; ++j) {
        s[i][j] = exp2_approx((s[i][j] - shift) * p.scale_log2);
        sum += s[i][j];
      }
      row_sum[i] = row_sum[i] * factor + sum;
#pragma unroll
      for (int u = 0; u < C::kColumns; ++u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[i][u][e] *= factor;
      }
    }
#pragma unroll
    for (int j = 0; j < C::kKeys; ++j) {
      Vector<float, C::kR> w;
#pragma unroll
      for (int i = 0; i < C::kR; ++i) w.at[i] = s[i][j];
      *weights_of(weights, x + j * kSide) = w;
    }
  }

  // kMasked: rows pass over the keys that they do not see; up to key `keys` only.
  template <bool kMasked>
  __device__ void multiply_values(float* weights, const float* v, int keys, int value_dim,
                                  const int (&limit)[C::kR]) {
#pragma unroll 2
    for (int j = 0; j < keys; ++j) {
      const Vector<float, C::kR> w = *weights_of(weights, j);
#pragma unroll
      for (int u = 0; u < C::kColumns; ++u) {
        const int column = u * 64 + 4 * x;
        if (column >= value_dim) break;
        const float4 right = *reinterpret_cast<const float4*>(v + j * C::kPitch + column);
#pragma unroll
        for (int i = 0; i < C::kR; ++i) {
          if (kMasked && j >= limit[i]) continue;
          acc[i][u][0] = fmaf(w.at[i], right.x, acc[i][u][0]);
          acc[i][u][1] = fmaf(w.at[i], right.y, acc[i][u][1]);
          acc[i][u][2] = fmaf(w.at[i], right.z, acc[i][u][2]);
          acc[i][u][3] = fmaf(w.at[i], right.w, acc[i][u][3]);
        }
      }
    }
  }

  __device__ void store(const AttentionParams& p, const AttentionBlock& b) {
#pragma unroll
    for (int i = 0; i < C::kR; ++i) {
#pragma unroll
      for (int step = kSide / 2; step > 0; step /= 2) {
        row_sum[i] += __shfl_xor_sync(~0u, row_sum[i], step);
      }
      const int row = y * C::kR + i;
      if (b.row_begin + row >= p.grid.rows) continue;
      const RowSink<float> sink(p, b, row, {row_max[i], row_sum[i]}, x == 0);
#pragma unroll
      for (int u = 0; u < C::kColumns; ++u) {
        sink.store(u * 64 + 4 * x, acc[i][u][0], acc[i][u][1]);
        sink.store(u * 64 + 4 * x + 2, acc[i][u][2], acc[i][u][3]);
      }
    }
  }
};

struct Aligned {
  bool q, k, v;  // rows take loads of 16 bytes
};

template <class C>
__global__ void __launch_bounds__(kThreads, C::kResident)
    attention_f32(const __grid_constant__ AttentionParams p, Aligned aligned, int64_t first_block) {
  extern __shared__ __align__(16) float shared_floats[];
  float* const q = shared_floats;
  float* const k = shared_floats + C::kK;
  float* const v = shared_floats + C::kV;
  float* const weights = shared_floats + C::kP;
  const AttentionBlock b = p.grid.block(first_block + blockIdx.x);
  load_queries<C>(p, b, aligned.q, q);
  Thread<C> thread;
  for (int64_t tile = b.tile_begin; tile < b.tile_end; ++tile) {
    const int64_t first = tile * C::kBN;
    const auto keys = static_cast<int>(min(p.grid.mask.kv_len - first, int64_t{C::kBN}));
    __syncthreads();  // nobody reads the tile before any more
    load_tile<C>(p.k, b, first, keys, p.head_dim, aligned.k, k);
    load_tile<C>(p.v, b, first, keys, p.value_dim, aligned.v, v);
    __syncthreads();  // the tile is there
    const bool masks = tile >= b.full_tiles;
    int limit[C::kR];
#pragma unroll
    for (int i = 0; i < C::kR; ++i) {
      limit[i] = C::kBN;
      if (masks) {
        limit[i] = p.grid.visible(b, static_cast<uint32_t>(thread.y * C::kR + i), first, C::kBN);
      }
    }
    typename Thread<C>::Scores s;
    thread.multiply_keys(s, q, k, vectors(p.head_dim));
    thread.weigh(s, p, limit, weights);
    __syncwarp();  // a row's weights are written and read by one half-warp
    if (masks) {
      thread.template multiply_values<true>(weights, v, keys, p.value_dim, limit);
    } else {
      thread.template multiply_values<false>(weights, v, C::kBN, p.value_dim, limit);
    }
  }
  thread.store(p, b);
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
  int64_t shared_bytes = 0;
};

constexpr int64_t kMinKeysPerPart = 128;  // below that, the merge costs more than it saves

Choice choose(const Problem& problem) {
  const AttentionSizes s = attention_sizes(problem);
  Choice c;
  c.dim = std::max(s.head_dim, s.value_dim);
  c.flat = s.q_len * s.group <= kSide;
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
  if (problem.inputs[0].dtype != DType::kF32) return Support::no("takes fp32 only");
  if (attention_sizes(problem).group > kMaxAttentionGroup) {
    return Support::no("more query heads to a key head than 2^30");
  }
  const Choice c = choose(problem);
  if (c.shared_bytes > problem.device.shared_bytes) {
    return Support::no("needs " + std::to_string(c.shared_bytes) +
                       " bytes of shared memory, the device has " +
                       std::to_string(problem.device.shared_bytes));
  }
  const Work work = problem.op->work(problem);
  // Of a multiprocessor, what is reached in practice, flop/µs; and bytes/µs of a device.
  const double cost_us =
      4 + std::max(work.flops / (1.8e5 * std::max(1, problem.device.multiprocessors)),
                   work.bytes / 2e6);
  return Support::yes(cost_us, (c.flat ? "flat, " : "tall, ") + describe(c.grid));
}

int64_t workspace_bytes(const Problem& problem) {
  AttentionParams p;
  p.grid = choose(problem).grid;
  p.value_dim = static_cast<int32_t>(attention_sizes(problem).value_dim);
  return p.parts_bytes();
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& problem, const Buffers& buffers) {
  if (problem.outputs[0].count() == 0) return make_prepared([](void*) {});
  const Choice c = choose(problem);
  const AttentionParams p = attention_params(problem, c.grid, buffers);
  const Aligned aligned = {rows_are_aligned(problem.inputs[0]), rows_are_aligned(problem.inputs[1]),
                           rows_are_aligned(problem.inputs[2])};
  return with_config(c.dim, c.flat, [&](auto config) -> std::unique_ptr<PreparedOp> {
    using C = decltype(config);
    allow_shared_bytes(attention_f32<C>, C::kSharedBytes);
    load_kernel(attention_f32<C>);
    load_kernel(attention_merge<float>);
    return make_prepared([p, aligned](void* stream) {
      launch_in_grids(p.grid.blocks(), [&](int64_t first, unsigned blocks) {
        attention_f32<C>
            <<<blocks, kThreads, C::kSharedBytes, as_cuda_stream(stream)>>>(p, aligned, first);
      });
      if (p.grid.splits > 1) launch_merge<float>(p, as_cuda_stream(stream));
    });
  });
}

}  // namespace

extern const KernelEntry attention_cuda_f32;
const KernelEntry attention_cuda_f32 = {
    .op = "attention",
    .name = "attention_cuda_f32",
    .backend = Backend::kCuda,
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
};

}  // namespace me
