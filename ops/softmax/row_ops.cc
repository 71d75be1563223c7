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

// The last, partial vector of a row goes through a buffer, so that nothing past the row is touched.
// The padding is -inf: it changes no maximum, and exp makes it 0.
HWY_INLINE V load_first(const float* from, size_t n) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::Store(hn::Set(d, -std::numeric_limits<float>::infinity()), d, lanes);
  std::memcpy(lanes, from, n * sizeof(float));
  return hn::Load(d, lanes);
}

HWY_INLINE void store_first(V v, size_t n, float* to) {
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, n * sizeof(float));
}

// y[i] = f(x[i]), a vector at a time.
template <class F>
HWY_INLINE void transform(const float* x, size_t n, float* y, const F& f) {
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(hn::LoadU(d, x + i)), d, y + i);
  if (i < n) store_first(f(load_first(x + i, n - i)), n - i, y + i);
}

float max_of(const float* x, size_t n) {
  const size_t lanes = hn::Lanes(d);
  const V least = hn::Set(d, -std::numeric_limits<float>::infinity());
  // Four running maxima hide the latency of one.
  V m0 = least, m1 = least, m2 = least, m3 = least;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, x + i));
    m1 = hn::Max(m1, hn::LoadU(d, x + i + lanes));
    m2 = hn::Max(m2, hn::LoadU(d, x + i + 2 * lanes));
    m3 = hn::Max(m3, hn::LoadU(d, x + i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) m0 = hn::Max(m0, hn::LoadU(d, x + i));
  if (i < n) m1 = hn::Max(m1, load_first(x + i, n - i));
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
}

// Where e is null, the exponentials are summed and not kept.
template <bool kKeep>
HWY_INLINE float exp_sum(const float* x, size_t n, float max, float* e) {
  const size_t lanes = hn::Lanes(d);
  const V m = hn::Set(d, max);
  V sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const V v = exp_nonpositive(d, hn::Sub(hn::LoadU(d, x + i), m));
    if (kKeep) hn::StoreU(v, d, e + i);
    sum = hn::Add(sum, v);
  }
  if (i < n) {
    const V v = exp_nonpositive(d, hn::Sub(load_first(x + i, n - i), m));
    if (kKeep) store_first(v, n - i, e + i);
    sum = hn::Add(sum, v);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

float exp_into(const float* x, size_t n, float max, float* e) {
  return exp_sum<true>(x, n, max, e);
}

float exp_only(const float* x, size_t n, float max) { return exp_sum<false>(x, n, max, nullptr); }

void scale(const float* e, size_t n, float factor, float* y) {
  const V f = hn::Set(d, factor);
  transform(e, n, y, [f](V v) HWY_ATTR { return hn::Mul(v, f); });
}

void exp_scaled(const float* x, size_t n, float max, float factor, float* y) {
  const V m = hn::Set(d, max);
  const V f = hn::Set(d, factor);
  transform(x, n, y,
            [m, f](V v) HWY_ATTR { return hn::Mul(exp_nonpositive(d, hn::Sub(v, m)), f); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace me
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace me {
namespace {

HWY_EXPORT(max_of);
HWY_EXPORT(exp_into);
HWY_EXPORT(exp_only);
HWY_EXPORT(scale);
HWY_EXPORT(exp_scaled);

}  // namespace

float row_max(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(max_of)(x, static_cast<size_t>(n));
}

float row_exp(const float* x, int64_t n, float max, float* e) {
  return HWY_DYNAMIC_DISPATCH(exp_into)(x, static_cast<size_t>(n), max, e);
}

void row_scale(const float* e, int64_t n, float factor, float* y) {
  HWY_DYNAMIC_DISPATCH(scale)(e, static_cast<size_t>(n), factor, y);
}

void row_exp_scaled(const float* x, int64_t n, float max, float factor, float* y) {
  HWY_DYNAMIC_DISPATCH(exp_scaled)(x, static_cast<size_t>(n), max, factor, y);
}

Normalizer row_normalizer(const float* x, int64_t n) {
  const float max = row_max(x, n);
  // Nothing above -inf: taken from 0, each -inf counts for nothing and a NaN still shows.
  const bool none = max == -std::numeric_limits<float>::infinity();
  return {max, HWY_DYNAMIC_DISPATCH(exp_only)(x, static_cast<size_t>(n), none ? 0.0f : max)};
}

}  // namespace me

#endif  // HWY_ONCE
