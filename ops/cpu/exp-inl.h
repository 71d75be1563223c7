// exp for the CPU kernels' vectors. A per-target header: include it inside the part of a file that
// hwy/foreach_target.h compiles once for each target, after hwy/highway.h.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#if defined(ME_OPS_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ME_OPS_CPU_EXP_INL_H_
#undef ME_OPS_CPU_EXP_INL_H_
#else
#define ME_OPS_CPU_EXP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace me {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x for fp32 lanes with x <= 0: exactly 1 for ±0, exactly 0 for -inf and wherever e^x rounds to
// 0, subnormal results kept, NaN for NaN. Highway's own Exp promises 1 ulp but answers 0 for NaN,
// so its lanes below the range of fp32 are chosen here. A lane with x > 0 that breaks the contract
// gets some value and no trap.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
  // e^-104 is below 2^-150, half the smallest subnormal: it rounds to 0.
  const V least = hn::Set(d, -104.0f);
  const auto in_range = hn::Ge(x, least);
  // Lanes out of range compute exp(0), as the conversion of NaN to integer is unspecified.
  const V e = hn::Exp(d, hn::IfThenElseZero(in_range, x));
  // Out of range are NaN, which stays itself, and what is too small, which becomes 0.
  return hn::IfThenElse(in_range, e, hn::IfThenZeroElse(hn::Lt(x, least), x));
}

}  // namespace HWY_NAMESPACE
}  // namespace me
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
