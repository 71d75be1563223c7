// exp for the CPU kernels' vectors. A per-target header: include it inside the part of a file that
// hwy/foreach_target.h compiles once for each target, after hwy/highway.h.
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

// The two halves of exp_nonpositive, for loops that have several vectors at hand: a vector is one
// long chain of dependent operations, and taking the halves in turn over four vectors keeps the
// units busy where the processor looks only some thirty operations ahead.
//
// x = q·ln 2 + r with |r| <= ln 2 / 2: returns r, and sets `scale` to 2^(q + 100).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_reduce(D d, V x, V& scale) {
  const hn::RebindToUnsigned<D> du;
  // e^-105 is below 2^-150, half the smallest subnormal. The comparison lets NaN through, which
  // then stays NaN in every product below.
  const V least = hn::Set(d, -105.0f);
  x = hn::IfThenElse(hn::Lt(x, least), least, x);

  // Added to 1.5·2^23, x / ln 2 rounds to the integer q in the low bits of the sum. kBias more
  // turns them into the exponent field of 2^(q + 100), normal for all q in [-151, 0].
  constexpr float kBias = 100 + 127;
  const V magic = hn::Set(d, 0x1.8p23f + kBias);
  const V shifted = hn::MulAdd(x, hn::Set(d, 0x1.715476p+0f), magic);
  const V q = hn::Sub(shifted, magic);
  scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));

  // ln 2 in two parts; the upper one has 15 bits, so its product with q is exact.
  const V r = hn::NegMulAdd(q, hn::Set(d, 0x1.62e4p-1f), x);
  return hn::NegMulAdd(q, hn::Set(d, 0x1.7f7d1cp-20f), r);
}

// e^r · 2^q of what exp_reduce gave.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_finish(D d, V r, V scale) {
  // 1 + r + r²·P(r), P minimax for the relative error on |r| <= 0.34668: 3.7e-9, 0.06 units of
  // roundoff, with the coefficients rounded to fp32.
  V e = hn::MulAdd(hn::Set(d, 0x1.6a24p-10f), r, hn::Set(d, 0x1.123a02p-7f));
  e = hn::MulAdd(e, r, hn::Set(d, 0x1.5558f2p-5f));
  e = hn::MulAdd(e, r, hn::Set(d, 0x1.555492p-3f));
  e = hn::MulAdd(e, r, hn::Set(d, 0x1.fffffcp-2f));
  e = hn::MulAdd(hn::Mul(e, r), r, r);
  e = hn::Add(e, hn::Set(d, 1.0f));

  // The first product is exact, the second rounds once where the result is subnormal.
  return hn::Mul(hn::Mul(e, scale), hn::Set(d, 0x1p-100f));
}

// e^x for fp32 lanes with x <= 0: exactly 1 for ±0, exactly 0 for -inf and wherever e^x rounds to
// 0, subnormal results kept, NaN for NaN. The error is below 2 ulp, an ulp being 2^-23 of the
// result's power of two or the smallest subnormal; 1.02 is the most over every fp32 in range, with
// and without fused multiply-add. A lane with x > 0 that breaks the contract gets some value and no
// trap.
//
// Half the operations of Highway's Exp, which also loses NaN. softmax reads and writes memory about
// as fast as this computes.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
  V scale;
  const V r = exp_reduce(d, x, scale);
  return exp_finish(d, r, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace me
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
