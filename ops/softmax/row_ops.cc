#include "ops/softmax/row_ops.h"

#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/softmax/row_ops.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "hwy/highway.h"
#include "ops/cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace me {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;

// A row shorter than a vector goes through a buffer, so that nothing past it is touched. The
// padding is -inf: it changes no maximum, and exp makes it 0. Longer rows end in a vector that
// overlaps the one before.
HWY_INLINE V load_short(const float* x, size_t n) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::Store(hn::Set(d, -std::numeric_limits<float>::infinity()), d, lanes);
  std::memcpy(lanes, x, n * sizeof(float));
  return hn::Load(d, lanes);
}

HWY_INLINE void store_short(V v, size_t n, float* y) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  std::memcpy(y, lanes, n * sizeof(float));
}

HWY_INLINE V max_of(const float* x, size_t n) {
  const size_t lanes = hn::Lanes(d);
  if (n < lanes) return hn::MaxOfLanes(d, load_short(x, n));
  // Four running maxima hide the latency of one.
  V m0 = hn::LoadU(d, x + n - lanes), m1 = m0, m2 = m0, m3 = m0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, x + i));
    m1 = hn::Max(m1, hn::LoadU(d, x + i + lanes));
    m2 = hn::Max(m2, hn::LoadU(d, x + i + 2 * lanes));
    m3 = hn::Max(m3, hn::LoadU(d, x + i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) m0 = hn::Max(m0, hn::LoadU(d, x + i));
  return hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
}

// y[i] = f(x[i])
template <class F>
HWY_INLINE void transform(const float* x, size_t n, float* y, const F& f) {
  const size_t lanes = hn::Lanes(d);
  if (n < lanes) return store_short(f(load_short(x, n)), n, y);
  const V last = hn::LoadU(d, x + n - lanes);  // before it is stored to, as y may be x
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(hn::LoadU(d, x + i)), d, y + i);
  if (i < n) hn::StoreU(f(last), d, y + n - lanes);
}

// Σ exp(x[i] - m) in every lane; e[i] gets the terms unless they are not kept.
template <bool kKeep>
HWY_INLINE V exp_sum(const float* x, size_t n, V m, float* e) {
  const size_t lanes = hn::Lanes(d);
  if (n < lanes) {
    const V v = exp_nonpositive(d, hn::Sub(load_short(x, n), m));
    if (kKeep) store_short(v, n, e);
    return hn::SumOfLanes(d, v);
  }
  const V last = hn::LoadU(d, x + n - lanes);  // before it is stored to, as e may be x
  V sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const V v = exp_nonpositive(d, hn::Sub(hn::LoadU(d, x + i), m));
    if (kKeep) hn::StoreU(v, d, e + i);
    sum = hn::Add(sum, v);
  }
  if (i < n) {
    const V v = exp_nonpositive(d, hn::Sub(last, m));
    if (kKeep) hn::StoreU(v, d, e + n - lanes);
    const size_t counted = lanes - (n - i);  // lanes of it that are in the sum already
    sum = hn::Add(sum, hn::IfThenZeroElse(hn::FirstN(d, counted), v));
  }
  return hn::SumOfLanes(d, sum);
}

void softmax(const float* x, size_t n, float* y) {
  const V sum = exp_sum<true>(x, n, max_of(x, n), y);
  const V factor = hn::Div(hn::Set(d, 1.0f), sum);
  transform(y, n, y, [factor](V v) HWY_ATTR { return hn::Mul(v, factor); });
}

void exp_scaled(const float* x, size_t n, float max, float factor, float* y) {
  const V m = hn::Set(d, max);
  const V f = hn::Set(d, factor);
  transform(x, n, y,
            [m, f](V v) HWY_ATTR { return hn::Mul(exp_nonpositive(d, hn::Sub(v, m)), f); });
}

Normalizer normalizer(const float* x, size_t n) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const float max = hn::GetLane(max_of(x, n));
  // Where nothing is above -inf, logits taken from 0 count for nothing and a NaN still shows.
  const V shift = hn::Set(d, max == kNone ? 0.0f : max);
  return {max, hn::GetLane(exp_sum<false>(x, n, shift, nullptr))};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace me
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace me {
namespace {

HWY_EXPORT(softmax);
HWY_EXPORT(exp_scaled);
HWY_EXPORT(normalizer);

}  // namespace

void row_softmax(const float* x, int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(softmax)(x, static_cast<size_t>(n), y);
}

void row_exp_scaled(const float* x, int64_t n, float max, float factor, float* y) {
  HWY_DYNAMIC_DISPATCH(exp_scaled)(x, static_cast<size_t>(n), max, factor, y);
}

Normalizer row_normalizer(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(normalizer)(x, static_cast<size_t>(n));
}

}  // namespace me

#endif  // HWY_ONCE
