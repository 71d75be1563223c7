// The 16-bit types to and from fp32, a vector at a time. bf16 is the upper half of an fp32, and its
// rounding is integer arithmetic on the bits (Highway's own conversion truncates in older
// versions). f16 uses the conversion instructions where the target has them (F16C) and otherwise
// the arithmetic of ops/base/dtype.h, lane by lane; the bits agree with dtype.h everywhere.
#include "ops/cpu/convert.h"

#include <algorithm>
#include <cstring>

#if ME_WITH_HIGHWAY

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/convert.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace me {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToUnsigned<Floats>;
using SignedWords = hn::RebindToSigned<Floats>;
using Halves = hn::Rebind<uint16_t, Floats>;  // as many lanes, half as wide

constexpr Floats kFloats;
constexpr Words kWords;
constexpr SignedWords kSignedWords;
constexpr Halves kHalves;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define ME_F16_INSTRUCTIONS 1
#else
#define ME_F16_INSTRUCTIONS 0
#endif

using VFloats = hn::Vec<Floats>;
using VWords = hn::Vec<Words>;
using VHalves = hn::Vec<Halves>;

// Every word below 2^16.
HWY_INLINE VHalves low_halves(VWords words) {
  return hn::DemoteTo(kHalves, hn::BitCast(kSignedWords, words));
}

// Words compared as signed: no word has its top bit set.
HWY_INLINE auto less(VWords a, uint32_t b) {
  return hn::RebindMask(
      kWords, hn::Lt(hn::BitCast(kSignedWords, a), hn::Set(kSignedWords, static_cast<int32_t>(b))));
}

struct BF16 {
  static HWY_INLINE VFloats widen(VHalves v) {
    return hn::BitCast(kFloats, hn::ShiftLeft<16>(hn::PromoteTo(kWords, v)));
  }

  static HWY_INLINE VHalves narrow(VFloats v) {
    const VWords bits = hn::BitCast(kWords, v);
    const VWords upper = hn::ShiftRight<16>(bits);
    const VWords odd = hn::And(upper, hn::Set(kWords, 1));
    const VWords rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(kWords, 0x7FFF))));
    const VWords quiet_nan = hn::Or(upper, hn::Set(kWords, 0x40));
    return low_halves(hn::IfThenElse(hn::RebindMask(kWords, hn::IsNaN(v)), quiet_nan, rounded));
  }

  static float widen_one(uint16_t v) { return bf16_to_f32(v); }
  static uint16_t narrow_one(float v) { return f32_to_bf16(v); }
};

struct F16 {
#if ME_F16_INSTRUCTIONS
  using Native = hn::Rebind<hwy::float16_t, Floats>;

  static HWY_INLINE VFloats widen(VHalves v) {
    return hn::PromoteTo(kFloats, hn::BitCast(Native(), v));
  }

  static HWY_INLINE VHalves narrow(VFloats v) {
    return hn::BitCast(kHalves, hn::DemoteTo(Native(), v));
  }
#else
  static HWY_INLINE VFloats widen(VHalves v) {
    const VWords bits = hn::PromoteTo(kWords, v);
    const VWords magnitude = hn::And(bits, hn::Set(kWords, 0x7FFF));
    const VWords sign = hn::ShiftLeft<16>(hn::Xor(bits, magnitude));
    const VWords placed = hn::ShiftLeft<13>(magnitude);
    const VWords finite =
        hn::BitCast(kWords, hn::Mul(hn::BitCast(kFloats, placed), hn::Set(kFloats, 0x1p112f)));
    const VWords infinite = hn::Or(placed, hn::Set(kWords, 0x7F800000));
    const VWords quiet_nan = hn::Or(placed, hn::Set(kWords, 0x7FC00000));
    const VWords wide =
        hn::IfThenElse(less(magnitude, 0x7C00), finite,
                       hn::IfThenElse(less(magnitude, 0x7C01), infinite, quiet_nan));
    return hn::BitCast(kFloats, hn::Or(wide, sign));
  }

  static HWY_INLINE VHalves narrow(VFloats v) {
    const VWords bits = hn::BitCast(kWords, v);
    const VWords magnitude = hn::And(bits, hn::Set(kWords, 0x7FFFFFFF));
    const VWords sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
    const VWords cut = hn::ShiftRight<13>(magnitude);
    const VWords odd = hn::And(cut, hn::Set(kWords, 1));
    // The exponent falls by 112 in the sum that rounds to nearest even.
    const VWords normal =
        hn::ShiftRight<13>(hn::Add(magnitude, hn::Add(odd, hn::Set(kWords, 0xFFFu - 0x38000000u))));
    // Below 2^-14, adding 0.5 aligns the ulp with the subnormal step.
    const VFloats aligned = hn::Add(hn::BitCast(kFloats, magnitude), hn::Set(kFloats, 0.5f));
    const VWords subnormal = hn::Sub(hn::BitCast(kWords, aligned), hn::Set(kWords, 0x3F000000));
    const VWords quiet_nan = hn::Or(hn::And(cut, hn::Set(kWords, 0x3FF)), hn::Set(kWords, 0x7E00));
    VWords half = hn::IfThenElse(less(magnitude, 0x7F800001), hn::Set(kWords, 0x7C00), quiet_nan);
    half = hn::IfThenElse(less(magnitude, 0x477FF000), normal, half);  // 65520 and up overflow
    half = hn::IfThenElse(less(magnitude, 0x38800000), subnormal, half);
    return low_halves(hn::Or(half, sign));
  }
#endif

  static float widen_one(uint16_t v) { return f16_to_f32(v); }
  static uint16_t narrow_one(float v) { return f32_to_f16(v); }
};

// Whole vectors, the last one of them overlapping the one before where n is no multiple.
template <class Type>
HWY_INLINE void widen_array(const uint16_t* HWY_RESTRICT from, size_t n, float* HWY_RESTRICT to) {
  const size_t lanes = hn::Lanes(kFloats);
  if (n < lanes) {
    for (size_t i = 0; i < n; ++i) to[i] = Type::widen_one(from[i]);
    return;
  }
  for (size_t i = 0; i < n; i += lanes) {
    const size_t at = std::min(i, n - lanes);
    hn::StoreU(Type::widen(hn::LoadU(kHalves, from + at)), kFloats, to + at);
  }
}

template <class Type>
HWY_INLINE void narrow_array(const float* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  const size_t lanes = hn::Lanes(kFloats);
  if (n < lanes) {
    for (size_t i = 0; i < n; ++i) to[i] = Type::narrow_one(from[i]);
    return;
  }
  for (size_t i = 0; i < n; i += lanes) {
    const size_t at = std::min(i, n - lanes);
    hn::StoreU(Type::narrow(hn::LoadU(kFloats, from + at)), kHalves, to + at);
  }
}

void widen_f16(const uint16_t* from, size_t n, float* to) { widen_array<F16>(from, n, to); }
void widen_bf16(const uint16_t* from, size_t n, float* to) { widen_array<BF16>(from, n, to); }
void narrow_f16(const float* from, size_t n, uint16_t* to) { narrow_array<F16>(from, n, to); }
void narrow_bf16(const float* from, size_t n, uint16_t* to) { narrow_array<BF16>(from, n, to); }

#undef ME_F16_INSTRUCTIONS

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace me
HWY_AFTER_NAMESPACE();

#endif  // ME_WITH_HIGHWAY

#if !ME_WITH_HIGHWAY || HWY_ONCE

namespace me {
namespace {

#if ME_WITH_HIGHWAY

HWY_EXPORT(widen_f16);
HWY_EXPORT(widen_bf16);
HWY_EXPORT(narrow_f16);
HWY_EXPORT(narrow_bf16);

void widen_16(const uint16_t* from, DType dtype, int64_t n, float* to) {
  const auto count = static_cast<size_t>(n);
  if (dtype == DType::kF16) {
    HWY_DYNAMIC_DISPATCH(widen_f16)(from, count, to);
  } else {
    HWY_DYNAMIC_DISPATCH(widen_bf16)(from, count, to);
  }
}

void narrow_16(const float* from, int64_t n, uint16_t* to, DType dtype) {
  const auto count = static_cast<size_t>(n);
  if (dtype == DType::kF16) {
    HWY_DYNAMIC_DISPATCH(narrow_f16)(from, count, to);
  } else {
    HWY_DYNAMIC_DISPATCH(narrow_bf16)(from, count, to);
  }
}

#else

void widen_16(const uint16_t* from, DType dtype, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = load_f32(from, i, dtype);
}

void narrow_16(const float* from, int64_t n, uint16_t* to, DType dtype) {
  for (int64_t i = 0; i < n; ++i) store_f32(to, i, dtype, from[i]);
}

#endif

constexpr int64_t kGathered = 256;  // elements of a strided 16-bit row on their way; 512 bytes

}  // namespace

void widen(const void* from, DType dtype, int64_t stride, int64_t n, float* to) {
  if (n <= 0) return;
  if (dtype == DType::kF32) {
    const auto* x = static_cast<const float*>(from);
    if (stride == 1) {
      std::memcpy(to, x, static_cast<size_t>(n) * sizeof(float));
    } else {
      for (int64_t i = 0; i < n; ++i) to[i] = x[i * stride];
    }
    return;
  }
  const auto* x = static_cast<const uint16_t*>(from);
  if (stride == 1) return widen_16(x, dtype, n, to);
  uint16_t gathered[kGathered];
  for (int64_t begin = 0; begin < n; begin += kGathered) {
    const int64_t m = std::min(kGathered, n - begin);
    for (int64_t i = 0; i < m; ++i) gathered[i] = x[(begin + i) * stride];
    widen_16(gathered, dtype, m, to + begin);
  }
}

void narrow(const float* from, int64_t n, void* to, DType dtype, int64_t stride) {
  if (n <= 0) return;
  if (dtype == DType::kF32) {
    auto* y = static_cast<float*>(to);
    if (stride == 1) {
      std::memcpy(y, from, static_cast<size_t>(n) * sizeof(float));
    } else {
      for (int64_t i = 0; i < n; ++i) y[i * stride] = from[i];
    }
    return;
  }
  auto* y = static_cast<uint16_t*>(to);
  if (stride == 1) return narrow_16(from, n, y, dtype);
  uint16_t rounded[kGathered];
  for (int64_t begin = 0; begin < n; begin += kGathered) {
    const int64_t m = std::min(kGathered, n - begin);
    narrow_16(from + begin, m, rounded, dtype);
    for (int64_t i = 0; i < m; ++i) y[(begin + i) * stride] = rounded[i];
  }
}

}  // namespace me

#endif  // HWY_ONCE
