#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/base/check.h"
#include "ops/base/dtype.h"
#include "ops/base/status.h"
#include "ops/base/tensor.h"

namespace me {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(DTypeTest, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = f16_to_f32(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(wide))));
    } else {
      EXPECT_EQ(f32_to_f16(wide), half);
    }
  }
}

TEST(DTypeTest, EveryBF16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = bf16_to_f32(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(wide))));
    } else {
      EXPECT_EQ(f32_to_bf16(wide), half);
    }
  }
}

// Between each pair of neighbouring finite f16 values: the midpoint goes to the even one, and the
// floats next to the midpoint to the nearer one.
TEST(DTypeTest, F16RoundsToNearestEvenIncludingSubnormals) {
  for (uint16_t low = 0; low < 0x7BFF; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const float middle = 0.5f * (f16_to_f32(low) + f16_to_f32(high));
    EXPECT_EQ(f32_to_f16(middle), low % 2 == 0 ? low : high);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), low);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, kInf)), high);
  }
}

TEST(DTypeTest, F16OverflowsOnlyFrom65520) {
  EXPECT_EQ(f32_to_f16(65519.996f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(-kInf), 0xFC00);
}

TEST(DTypeTest, BF16RoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(1.00390625f), 0x3F80);  // midpoint between 1 and 1 + 2^-7, to even
  EXPECT_EQ(f32_to_bf16(1.01171875f), 0x3F82);  // next midpoint, to even
  EXPECT_EQ(f32_to_bf16(3.4e38f), 0x7F80);      // past the largest bf16: infinity
}

TEST(DTypeTest, DoublesAreRoundedOnce) {
  const auto f16 = [](double value) {
    uint16_t bits = 0;
    store_f64(&bits, 0, DType::kF16, value);
    return bits;
  };
  // Just above a midpoint of two f16: through a rounded fp32 it would become the midpoint, then
  // even.
  EXPECT_EQ(f16(1.0 + 0x1p-11 + 0x1p-40), 0x3C01);
  EXPECT_EQ(f16(-(1.0 + 0x1p-11 + 0x1p-40)), 0xBC01);
  EXPECT_EQ(f16(1.0 + 0x1p-11), 0x3C00);
  EXPECT_EQ(f16(1.0 + 0x1p-11 - 0x1p-40), 0x3C00);
  EXPECT_EQ(f16(65520.0 - 1e-9), 0x7BFF);
  EXPECT_EQ(f16(1e300), 0x7C00);
  EXPECT_EQ(f16(-1e-300), 0x8000);
  EXPECT_EQ(f16(0x1p-25 + 0x1p-70), 0x0001);  // just above half the smallest subnormal
  uint16_t bits = 0;
  store_f64(&bits, 0, DType::kBF16, 1.0 + 0x1p-8 + 0x1p-50);
  EXPECT_EQ(bits, 0x3F81);
  store_f64(&bits, 0, DType::kBF16, std::nan(""));
  EXPECT_TRUE(std::isnan(bf16_to_f32(bits)));
  float single = 0;
  store_f64(&single, 0, DType::kF32, 0.1);
  EXPECT_EQ(single, 0.1f);
}

TEST(TensorTest, CountRefusesOverflowEvenBehindAZeroExtent) {
  EXPECT_EQ(checked_count({3, 0, 5}), 0);
  EXPECT_EQ(checked_count({1 << 20, 1 << 20, 1 << 20}), std::nullopt);
  EXPECT_EQ(checked_count({0, int64_t{1} << 40, int64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(checked_count({-1}), std::nullopt);
  EXPECT_EQ(checked_count({}), 1);
}

TEST(TensorTest, TransposedTwoByThreeReadsTheWorkedOffsets) {  // W
  TensorDesc t = dense(DType::kF32, {3, 2});
  t.strides = {1, 3};
  EXPECT_EQ(offset_of(t, 2 * 2 + 1), 5);  // logical (2, 1)
  EXPECT_EQ(offset_of(t, 0 * 2 + 1), 3);  // logical (0, 1)
  EXPECT_FALSE(t.is_dense());
}

TEST(TensorTest, DenseIgnoresStridesOfUnitExtents) {
  TensorDesc t = dense(DType::kF32, {1, 4});
  t.strides = {77, 1};
  EXPECT_TRUE(t.is_dense());
  t.strides = {4, 0};
  EXPECT_FALSE(t.is_dense());
}

TEST(StatusTest, UntrustedNamesAreEscaped) {
  EXPECT_EQ(in_quotes("a\n\x1b[31m\"\\"), "\"a\\n\\x1b[31m\\\"\\\\\"");
  EXPECT_EQ(in_quotes(std::string("a\0b", 3)), "\"a\\x00b\"");
  EXPECT_EQ(in_quotes("\xc3\xa9"), "\"\xc3\xa9\"");                      // e acute stays
  EXPECT_EQ(in_quotes("\xc2\x9b"), "\"\\xc2\\x9b\"");                    // C1 control
  EXPECT_EQ(in_quotes("\xff\xed\xa0\x80"), "\"\\xff\\xed\\xa0\\x80\"");  // invalid UTF-8
  EXPECT_LT(in_quotes(std::string(100000, 'x')).size(), 200u);
}

TEST(StatusTest, ErrorNamesFileNodeAndField) {
  Error e = invalid("found 7, expected NONE or RELU");
  e.file = "m.pb";
  e.node = "fc1";
  e.field = "linear.activation";
  EXPECT_EQ(e.to_string(), "m.pb: node \"fc1\": linear.activation: found 7, expected NONE or RELU");
}

CheckReport check_one(float got, double want, double bound) {
  TensorView view = {dense(DType::kF32, {1}), &got};
  return check_output(view, {{{1}, {want}}, {bound}});
}

TEST(CheckTest, NaNAndInfinityMustMeetTheirLike) {
  const float nan = std::nanf("");
  EXPECT_FALSE(check_one(nan, 1.0, 1e30).passed);
  EXPECT_FALSE(check_one(1.0f, nan, 1e30).passed);
  EXPECT_TRUE(check_one(nan, nan, 0).passed);
  EXPECT_FALSE(check_one(kInf, 1.0, 1e30).passed);
  EXPECT_FALSE(check_one(kInf, -kInf, 0).passed);
  EXPECT_TRUE(check_one(kInf, kInf, 0).passed);
  EXPECT_FALSE(check_one(1.0f, 1.0, nan).passed && check_one(2.0f, 1.0, nan).passed);
}

TEST(CheckTest, BoundIsTheBound) {
  EXPECT_TRUE(check_one(1.0f, 1.001, 0.002).passed);
  EXPECT_FALSE(check_one(1.0f, 1.003, 0.002).passed);
}

TEST(CheckTest, OverflowIsLegalOnlyWhereTheValueReachesIt) {
  uint16_t infinity = 0x7C00;
  const TensorView view = {dense(DType::kF16, {1}), &infinity};
  EXPECT_TRUE(check_output(view, {{{1}, {65521.0}}, {0}}).passed);
  EXPECT_FALSE(check_output(view, {{{1}, {65000.0}}, {0}}).passed);
  EXPECT_FALSE(check_output(view, {{{1}, {-65521.0}}, {0}}).passed);
}

}  // namespace
}  // namespace me
