// exp_nonpositive against std::exp in FP64, on every vector target that this machine can run.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/ops/exp_test.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "hwy/highway.h"
#include "ops/cpu/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace me {
namespace HWY_NAMESPACE {
namespace {

// n is a multiple of 64, more lanes than any fixed-size vector has.
void exp_array(const float* x, size_t n, float* y) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(exp_nonpositive(d, hn::LoadU(d, x + i)), d, y + i);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace me
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace me {
namespace {

HWY_EXPORT(exp_array);

std::vector<float> exp_of(std::vector<float> x) {
  const size_t n = x.size();
  x.resize((n + 63) / 64 * 64);
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(exp_array)(x.data(), x.size(), y.data());
  y.resize(n);
  return y;
}

template <class Body>
void for_each_target(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(ExpTest, NaNZeroesInfinityAndTheEndsOfTheRange) {
  for_each_target([] {
    const std::vector<float> y = exp_of({0.0f, -0.0f, -kInf, kNaN, -kNaN, -104.0f, -105.0f, -200.0f,
                                         -3e38f, -0x1p-149f, -103.97f, -87.4f});
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[2], 0);
    EXPECT_TRUE(std::isnan(y[3]));
    EXPECT_TRUE(std::isnan(y[4]));
    for (const size_t i : {5, 6, 7, 8}) EXPECT_EQ(y[i], 0) << i;
    EXPECT_EQ(y[9], 1);
    EXPECT_EQ(y[10], 0x1p-149f);
    EXPECT_GT(y[11], 0);  // subnormal
    EXPECT_LT(y[11], std::numeric_limits<float>::min());
  });
}

TEST(ExpTest, NaNInOneLaneLeavesTheOthersAlone) {
  for_each_target([] {
    for (size_t lane = 0; lane < 64; ++lane) {
      std::vector<float> x(64, -1.0f);
      x[lane] = kNaN;
      const std::vector<float> y = exp_of(x);
      for (size_t i = 0; i < 64; ++i) {
        EXPECT_TRUE(i == lane ? std::isnan(y[i]) : std::abs(y[i] - 0.36787944f) < 1e-7f) << i;
      }
    }
  });
}

// Every 509th fp32 of the range; 1.02 ulp is the worst of them all.
TEST(ExpTest, ErrorStaysBelowTheDocumentedUlps) {
  const uint32_t first = std::bit_cast<uint32_t>(0x1p-27f);
  const uint32_t last = std::bit_cast<uint32_t>(105.0f);
  std::vector<float> x;
  for (uint32_t bits = first; bits < last; bits += 509) x.push_back(-std::bit_cast<float>(bits));
  for_each_target([&] {
    const std::vector<float> y = exp_of(x);
    double worst = 0;
    float at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      const double ulp = std::max(0x1p-149, std::ldexp(1.0, std::ilogb(want) - 23));
      const double error = std::abs(y[i] - want) / ulp;
      if (!(error <= worst)) {
        worst = error;
        at = x[i];
      }
    }
    EXPECT_LE(worst, 1.02) << "at " << at;
  });
}

}  // namespace
}  // namespace me

#endif  // HWY_ONCE
