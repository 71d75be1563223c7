#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/ops/cuda/normalizer_on_device.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

class CudaNormalizerTest : public ::testing::Test {
 protected:
  // merge(a[i], b[i]) as the device computes it.
  static std::vector<Normalizer> merge_on_device(const std::vector<Normalizer>& a,
                                                 const std::vector<Normalizer>& b) {
    const std::shared_ptr<Device>& device = test_device();
    const auto bytes = static_cast<int64_t>(a.size() * sizeof(Normalizer));
    const Memory left = Memory::on_device(device, bytes).value();
    const Memory right = Memory::on_device(device, bytes).value();
    const Memory out = Memory::on_device(device, bytes).value();
    device->fill(out.data(), 0xFF, bytes);
    device->upload(left.data(), a.data(), bytes);
    device->upload(right.data(), b.data(), bytes);
    const auto at = [](const Memory& memory) {
      return reinterpret_cast<Normalizer*>(memory.data());
    };
    enqueue_merges(at(left), at(right), at(out), static_cast<int>(a.size()), device->stream());
    std::vector<Normalizer> merged(a.size());
    device->download(merged.data(), out.data(), bytes);
    device->wait();
    return merged;
  }
};

TEST_F(CudaNormalizerTest, WorkedMergesAndEmptySets) {  // W
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
TEST_F(CudaNormalizerTest, AgreesWithTheHost) {
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
