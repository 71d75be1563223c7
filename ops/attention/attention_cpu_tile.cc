// The inner part of attention_cpu_streaming, for the best vector instructions that the machine has.
//
//   for each tile of 128 keys:                     K tile packed once, transposed: [head_dim, 128]
//     for each block of up to 6 query rows:        V tile packed once:             [128, value_dim]
//       S = Q·Kᵀ                 [6, 128]   micro-kernel, depth head_dim
//       m' = max(m, max S), P = exp(S - m'), f = exp(m - m'), l = f·l + Σ P
//       a = f·a + P·V      [6, value_dim]   the same micro-kernel, depth 128
//
// One block of scores is alive at a time (3 KiB, in the first-level cache). The packed tiles, 32
// KiB each at a head_dim of 64, stay in the second level, and the micro-kernel sweeps them in
// order: 64 bytes for 12 fused multiply-adds. A row's work on its scores has a fixed part (the
// maximum, two reductions, an exp for f), which is why a tile has 128 keys and not 64.
//
// The micro-kernel holds R rows times C vectors of results in registers: 6×2 of the 16 registers of
// AVX2, with 2 for the right operand and 1 for the broadcast left one. That is 12 independent
// fused multiply-adds for 2 loads and 6 broadcasts, which keeps both units busy.
//
// Masking is exact. Scores past a row's last visible key are replaced by -inf, whatever they are,
// and P·V of a row stops at that key: rows of a block go together up to what the first of them sees
// and one by one from there, so 0·NaN never arises.
//
// A tile of up to four rows (decoding) would spend more on packing than on arithmetic, so it takes
// dot products along head_dim from K as it lies, and V as it lies, where their layout allows.
#include "ops/attention/attention_cpu_tile.h"

#include <algorithm>
#include <limits>

#include "ops/cpu/convert.h"
#include "ops/softmax/normalizer.h"

// Vectors here live in arrays, which sizeless types cannot.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/attention_cpu_tile.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, for each target.
#include "ops/cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace me {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Vector = hn::Vec<FloatTag>;
constexpr int64_t kLanes = hn::MaxLanes(FloatTag());
static_assert(kRowPad % kLanes == 0 && kTileKeys % kRowPad == 0);

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kDotRows = 4;      // up to so many rows, scores come from dot products
constexpr int64_t kDotKeys = 64;     // ... of so many keys at a time: V in place fits beside K
constexpr int64_t kInPlaceRows = 6;  // up to so many rows, V is read in place where it can be

// c[r][·] = factor[r]·c[r][·] + Σ_i a[r][i]·b[i][·] for R rows and C vectors of columns. A null
// `factor` takes c as zero without reading it.
template <int R, int C>
HWY_INLINE void multiply_block(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                               int64_t depth, const float* factor, float* c, int64_t c_stride) {
  const FloatTag d;
  Vector sum[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v) {
      sum[r][v] = factor == nullptr
                      ? hn::Zero(d)
                      : hn::Mul(hn::Set(d, factor[r]), hn::Load(d, c + r * c_stride + v * kLanes));
    }
  }
  for (int64_t i = 0; i < depth; ++i) {
    Vector right[C];
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v) right[v] = hn::LoadU(d, b + i * b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vector left = hn::Set(d, a[r * a_stride + i]);
#pragma GCC unroll 8
      for (int v = 0; v < C; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < C; ++v) hn::Store(sum[r][v], d, c + r * c_stride + v * kLanes);
  }
}

// The same for any number of vectors of columns. Few rows take more columns at a time, so that
// enough independent sums are in flight to hide the latency of an addition.
template <int R>
void multiply_rows(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   int64_t depth, const float* factor, int64_t vectors, float* c,
                   int64_t c_stride) {
  constexpr int kWidest = R == 1 ? 8 : R <= 3 ? 4 : 2;
  int64_t v = 0;
  const auto take = [&]<int C>() HWY_ATTR {
    for (; v + C <= vectors; v += C) {
      multiply_block<R, C>(a, a_stride, b + v * kLanes, b_stride, depth, factor, c + v * kLanes,
                           c_stride);
    }
  };
  if constexpr (kWidest >= 8) take.template operator()<8>();
  if constexpr (kWidest >= 4) take.template operator()<4>();
  take.template operator()<2>();
  take.template operator()<1>();
}

void multiply(int64_t rows, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
              int64_t depth, const float* factor, int64_t vectors, float* c, int64_t c_stride) {
  static_assert(kBlockRows == 6);
  constexpr decltype(&multiply_rows<1>) kByRows[] = {multiply_rows<1>, multiply_rows<2>,
                                                     multiply_rows<3>, multiply_rows<4>,
                                                     multiply_rows<5>, multiply_rows<6>};
  kByRows[rows - 1](a, a_stride, b, b_stride, depth, factor, vectors, c, c_stride);
}

// to[i][j] = from[j][i]: four rows of `from` become four columns of `to`, `n` of them long.
// Requires four zero or real floats up to a multiple of 4 past n.
void transpose_4_rows(const float* const from[4], int64_t n, float* to, int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR  // has no shuffles
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < 4; ++j) to[i * to_stride + j] = from[j][i];
  }
#else
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> wide;
  for (int64_t i = 0; i < n; i += 4) {
    const auto r0 = hn::LoadU(d, from[0] + i);
    const auto r1 = hn::LoadU(d, from[1] + i);
    const auto r2 = hn::LoadU(d, from[2] + i);
    const auto r3 = hn::LoadU(d, from[3] + i);
    const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));  // 00 10 01 11
    const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
    const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
    const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
    float* out = to + i * to_stride;
    hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, out);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, out + to_stride);
    hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, out + 2 * to_stride);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, out + 3 * to_stride);
  }
#endif
}

const void* row_of(const StridedMatrix& m, int64_t row) {
  return element(m.data, m.dtype, row * m.row_stride);
}

// Rows [row, row + n), n <= 4, as fp32 with zeros up to padded(length): in place where they lie so,
// otherwise in `strip` [4, padded(length)]. The rows up to the fourth repeat the last.
void four_rows(const StridedMatrix& m, int64_t row, int64_t n, int64_t length, float* strip,
               const float* rows[4]) {
  const bool in_place = m.dtype == DType::kF32 && m.inner_stride == 1 && length == padded(length);
  for (int64_t r = 0; r < 4; ++r) {
    if (r >= n) {
      rows[r] = rows[n - 1];
    } else if (in_place) {
      rows[r] = static_cast<const float*>(row_of(m, row + r));
    } else {
      float* to = strip + r * padded(length);
      widen(row_of(m, row + r), m.dtype, m.inner_stride, length, to);
      std::fill(to + length, to + padded(length), 0.0f);
      rows[r] = to;
    }
  }
}

constexpr int64_t kStripFloats = int64_t{4} * 256;  // four_rows of the largest head_dim

// k_tile[d][j] = K[first + j][d] for j < keys.
void pack_keys(const TileArgs& args, int64_t first, int64_t keys) {
  if (args.k.inner_stride != 1) {  // a transposed K: its columns may be contiguous
    for (int64_t i = 0; i < args.head_dim; ++i) {
      const void* from = element(row_of(args.k, first), args.k.dtype, i * args.k.inner_stride);
      widen(from, args.k.dtype, args.k.row_stride, keys, args.k_tile + i * kTileKeys);
    }
    return;
  }
  HWY_ALIGN float strip[kStripFloats];
  for (int64_t j = 0; j < keys; j += 4) {
    const float* rows[4];
    four_rows(args.k, first + j, std::min<int64_t>(4, keys - j), args.head_dim, strip, rows);
    transpose_4_rows(rows, args.head_dim, args.k_tile + j, kTileKeys);
  }
}

// v_tile[j][·] = V[first + j][·] for j < keys, with zeros in the padding.
void pack_values(const TileArgs& args, int64_t first, int64_t keys) {
  const int64_t stride = padded(args.value_dim);
  for (int64_t j = 0; j < keys; ++j) {
    float* to = args.v_tile + j * stride;
    widen(row_of(args.v, first + j), args.v.dtype, args.v.inner_stride, args.value_dim, to);
    std::fill(to + args.value_dim, to + stride, 0.0f);
  }
}

// scores[r][j] = q[r] · K[first + j] for every row of the tile, by dot products along head_dim.
void dot_scores(const TileArgs& args, int64_t first, int64_t keys) {
  const FloatTag d;
  const int64_t length = padded(args.head_dim);
  HWY_ALIGN float strip[kStripFloats];
  for (int64_t j = 0; j < keys; j += 4) {
    const float* rows[4];
    four_rows(args.k, first + j, std::min<int64_t>(4, keys - j), args.head_dim, strip, rows);
    for (int64_t r = 0; r < args.rows; ++r) {
      const float* q = args.q + r * length;
      Vector sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      for (int64_t i = 0; i < length; i += kLanes) {
        const Vector left = hn::Load(d, q + i);
        for (int n = 0; n < 4; ++n) sum[n] = hn::MulAdd(left, hn::LoadU(d, rows[n] + i), sum[n]);
      }
      for (int n = 0; n < 4; ++n) {
        args.scores[r * kTileKeys + j + n] = hn::GetLane(hn::SumOfLanes(d, sum[n]));
      }
    }
  }
}

// Turns a row's scores of this tile into weights and brings (m, l) up to date. Returns the factor
// that a must be multiplied by. `visible` >= 1 of the scores count; the rest of the last vector
// becomes 0.
float weigh_row(float* scores, int64_t visible, float& row_max, float& row_sum) {
  const FloatTag d;
  const int64_t whole = visible / kLanes * kLanes;
  // A NaN score may get lost in a maximum; its own weight is NaN all the same.
  Vector max = hn::Set(d, kMinusInfinity);
  for (int64_t j = 0; j < whole; j += kLanes) max = hn::Max(max, hn::Load(d, scores + j));
  if (whole < visible) {
    const auto seen = hn::FirstN(d, static_cast<size_t>(visible - whole));
    const Vector last =
        hn::IfThenElse(seen, hn::Load(d, scores + whole), hn::Set(d, kMinusInfinity));
    hn::Store(last, d, scores + whole);
    max = hn::Max(max, last);
  }
  const float tile_max = hn::GetLane(hn::MaxOfLanes(d, max));
  const float new_max = tile_max > row_max ? tile_max : row_max;
  // Where all scores so far are -inf, their weights are exp(-inf - 0) = 0 and not exp(-inf + inf).
  const Vector shift = hn::Set(d, new_max == kMinusInfinity ? 0.0f : new_max);
  Vector sum = hn::Zero(d);
  int64_t j = 0;
  constexpr int kAtOnce = 4;
  for (; j + kAtOnce * kLanes <= visible; j += kAtOnce * kLanes) {
    Vector p[kAtOnce];
    Vector scale[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) {
      const Vector x = hn::Sub(hn::Load(d, scores + j + i * kLanes), shift);
      p[i] = exp_reduce(d, x, scale[i]);
    }
    for (int i = 0; i < kAtOnce; ++i) p[i] = exp_finish(d, p[i], scale[i]);
    for (int i = 0; i < kAtOnce; ++i) {
      hn::Store(p[i], d, scores + j + i * kLanes);
      sum = hn::Add(sum, p[i]);
    }
  }
  for (; j < visible; j += kLanes) {
    const Vector p = exp_nonpositive(d, hn::Sub(hn::Load(d, scores + j), shift));
    hn::Store(p, d, scores + j);
    sum = hn::Add(sum, p);
  }
  const float factor = rescale_factor(row_max, new_max);
  row_max = new_max;
  row_sum = row_sum * factor + hn::GetLane(hn::SumOfLanes(d, sum));
  return factor;
}

// V's rows of one key tile: packed, or in place.
struct ValueTile {
  const float* data;
  int64_t stride;
};

// Rows [row, row + n) of the query tile against the `keys` keys from `first` on.
void attend_block(const TileArgs& args, int64_t row, int64_t n, int64_t first, int64_t keys,
                  const ValueTile& v) {
  // What a row sees of this tile.
  const auto seen = [&](int64_t r) {
    return std::clamp<int64_t>(args.visible[row + r] - first, 0, keys);
  };
  const int64_t most = seen(n - 1);
  if (most == 0) return;
  if (args.rows > kDotRows) {
    multiply(n, args.q + row * padded(args.head_dim), padded(args.head_dim), args.k_tile, kTileKeys,
             args.head_dim, nullptr, (most + kLanes - 1) / kLanes, args.scores, kTileKeys);
  }
  float factor[kBlockRows];
  for (int64_t r = 0; r < n; ++r) {
    const int64_t visible = seen(r);
    factor[r] = visible == 0 ? 1.0f
                             : weigh_row(args.scores + r * kTileKeys, visible,
                                         args.row_max[row + r], args.row_sum[row + r]);
  }
  const int64_t acc_stride = padded(args.value_dim);
  const int64_t vectors = acc_stride / kLanes;
  float* acc = args.acc + row * acc_stride;
  const int64_t together = seen(0);
  multiply(n, args.scores, kTileKeys, v.data, v.stride, together, factor, vectors, acc, acc_stride);
  constexpr float kKeep = 1;
  for (int64_t r = 1; r < n; ++r) {
    if (seen(r) == together) continue;
    multiply(1, args.scores + r * kTileKeys + together, kTileKeys, v.data + together * v.stride,
             v.stride, seen(r) - together, &kKeep, vectors, acc + r * acc_stride, acc_stride);
  }
}

void attend(const TileArgs& args) {
  std::fill(args.row_max, args.row_max + args.rows, kMinusInfinity);
  std::fill(args.row_sum, args.row_sum + args.rows, 0.0f);
  std::fill(args.acc, args.acc + args.rows * padded(args.value_dim), 0.0f);
  const bool values_in_place = args.rows <= kInPlaceRows && args.v.dtype == DType::kF32 &&
                               args.v.inner_stride == 1 && args.value_dim == padded(args.value_dim);
  const int64_t key_end = std::min(args.key_end, args.visible[args.rows - 1]);
  const int64_t step = args.rows > kDotRows ? kTileKeys : kDotKeys;
  for (int64_t first = args.key_begin; first < key_end; first += step) {
    const int64_t keys = std::min(step, key_end - first);
    ValueTile v{args.v_tile, padded(args.value_dim)};
    if (values_in_place) {
      v = {static_cast<const float*>(row_of(args.v, first)), args.v.row_stride};
    } else {
      pack_values(args, first, keys);
    }
    if (args.rows > kDotRows) {
      pack_keys(args, first, keys);
    } else {
      dot_scores(args, first, keys);
    }
    for (int64_t row = 0; row < args.rows; row += kBlockRows) {
      attend_block(args, row, std::min(kBlockRows, args.rows - row), first, keys, v);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace me
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace me {

HWY_EXPORT(attend);

void attend_tile(const TileArgs& args) { HWY_DYNAMIC_DISPATCH(attend)(args); }

}  // namespace me
#endif  // HWY_ONCE
