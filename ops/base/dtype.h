// Element types and their conversions, shared by host and device code.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace me {

enum class DType : uint8_t { kF32, kF16, kBF16 };

constexpr int64_t size_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "?";
}

// Unit roundoff: the largest relative error of one rounding to nearest.
constexpr double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
  }
  return 0;
}

// Half the distance between neighbouring subnormals: the absolute error of a rounding near zero.
constexpr double subnormal_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1p-150;
    case DType::kF16:
      return 0x1p-25;
    case DType::kBF16:
      return 0x1p-134;
  }
  return 0;
}

// The smallest magnitude that rounds to infinity.
constexpr double overflow_threshold(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0x1.ffffffp+127;
    case DType::kF16:
      return 65520.0;
    case DType::kBF16:
      return 0x1.ffp+127;
  }
  return 0;
}

// bf16 is the upper half of an fp32. Exact.
constexpr float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To nearest even; NaN stays NaN (quiet).
constexpr uint16_t f32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// Exact, subnormals included; NaN becomes quiet, as the conversion instructions have it.
constexpr float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity and NaN
    const uint32_t quiet = magnitude > 0x7C00u ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | quiet | ((magnitude & 0x3FFu) << 13));
  }
  // Placed in an fp32's fields the exponent is 112 too small; the product is exact and normalises.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | sign);
}

// To nearest even, subnormals and overflow to infinity included; NaN stays NaN (quiet).
constexpr uint16_t f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  }
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 aligns the ulp with the subnormal step
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

// Element `index` of the array at `data`.
inline float load_f32(const void* data, int64_t index, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kF16:
      return f16_to_f32(static_cast<const uint16_t*>(data)[index]);
    case DType::kBF16:
      return bf16_to_f32(static_cast<const uint16_t*>(data)[index]);
  }
  return 0;
}

// Rounds `value` once to `dtype`, to nearest even.
inline void store_f32(void* data, int64_t index, DType dtype, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = value;
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[index] = f32_to_f16(value);
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[index] = f32_to_bf16(value);
      return;
  }
}

// Rounds a double once to `dtype`, to nearest even. On the way to 16 bits the fp32 in between is
// rounded to odd, which keeps the last rounding honest.
inline void store_f64(void* data, int64_t index, DType dtype, double value) {
  auto narrow = static_cast<float>(value);
  if (dtype != DType::kF32 && static_cast<double>(narrow) != value && value == value) {
    uint32_t bits = std::bit_cast<uint32_t>(narrow);
    const bool away =
        value < 0 ? static_cast<double>(narrow) < value : static_cast<double>(narrow) > value;
    if (away) --bits;  // one step towards zero
    narrow = std::bit_cast<float>(bits | 1u);
  }
  store_f32(data, index, dtype, narrow);
}

}  // namespace me
