#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "ops/cuda/device.h"
#include "tests/ops/cuda/normalizer_on_device.h"

namespace me::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class NormalizerOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto devices = cuda_devices();
    if (!devices.ok()) GTEST_SKIP() << devices.error().to_string();
  }
};

TEST_F(NormalizerOnDevice, WorkedMergesAndEmptySets) {  // W
  const Normalizer empty;
  const auto merged =
      merge_on_device({{2, 2}, empty, {3, 1}, {1, 1}}, {{4, 1}, empty, empty, normalizer_of(kInf)});
  EXPECT_EQ(merged[0].max, 4);
  EXPECT_FLOAT_EQ(merged[0].sum, 1 + 2 * std::exp(-2.0f));
  EXPECT_EQ(merged[1].max, -kInf);
  EXPECT_EQ(merged[1].sum, 0);
  EXPECT_EQ(merged[2].max, 3);
  EXPECT_EQ(merged[2].sum, 1);
  EXPECT_TRUE(std::isnan(merged[3].sum));
}

// The two exponentials differ by at most 3 units in the last place, and no more than one of the two
// terms is rescaled.
TEST_F(NormalizerOnDevice, AgreesWithTheHost) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 20);
  std::vector<Normalizer> a;
  std::vector<Normalizer> b;
  for (int i = 0; i < 10000; ++i) {
    a.push_back({normal(random), 1 + std::abs(normal(random))});
    b.push_back({normal(random), 1 + std::abs(normal(random))});
  }
  const auto merged = merge_on_device(a, b);
  for (size_t i = 0; i < a.size(); ++i) {
    const Normalizer host = merge(a[i], b[i]);
    EXPECT_EQ(merged[i].max, host.max);
    EXPECT_NEAR(merged[i].sum, host.sum, 4 * 0x1p-23f * host.sum);
  }
}

}  // namespace
}  // namespace me::testing
