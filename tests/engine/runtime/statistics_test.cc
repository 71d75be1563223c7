#include "engine/runtime/statistics.h"

#include <gtest/gtest.h>

#include <numeric>

namespace me {
namespace {

// 1, 2, .., n, in another order.
std::vector<double> shuffled(int n) {
  std::vector<double> samples(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) samples[static_cast<size_t>(i)] = (i * 7919) % n + 1;
  return samples;
}

TEST(StatisticsTest, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

TEST(StatisticsTest, OfTenThousand) {
  const Statistics s = summarize(shuffled(10000));
  EXPECT_EQ(s.count, 10000);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.max, 10000);
  EXPECT_EQ(s.median, 5000.5);
  EXPECT_EQ(s.mean, 5000.5);
  EXPECT_EQ(s.p90, 9000);
  EXPECT_EQ(s.p95, 9500);
  EXPECT_EQ(s.p99, 9900);
  EXPECT_EQ(s.p99_9, 9990);
  EXPECT_NEAR(s.spread, 5000 / 5000.5, 1e-12);
}

TEST(StatisticsTest, TailsNeedSamplesBeyondThem) {
  EXPECT_FALSE(summarize(shuffled(90)).p90.has_value());
  EXPECT_EQ(summarize(shuffled(100)).p90, 90);
  EXPECT_FALSE(summarize(shuffled(100)).p95.has_value());
  EXPECT_FALSE(summarize(shuffled(900)).p99.has_value());
  EXPECT_TRUE(summarize(shuffled(1000)).p99.has_value());
  EXPECT_FALSE(summarize(shuffled(9000)).p99_9.has_value());
}

TEST(StatisticsTest, OneSample) {
  const Statistics s = summarize({2.5});
  EXPECT_EQ(s.min, 2.5);
  EXPECT_EQ(s.median, 2.5);
  EXPECT_EQ(s.max, 2.5);
  EXPECT_EQ(s.spread, 0);
}

}  // namespace
}  // namespace me
