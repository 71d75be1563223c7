// The (max, sum) algebra and the split arithmetic that host and device share.
#include "ops/softmax/normalizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "ops/softmax/split.h"

namespace me {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

Normalizer of_all(const std::vector<float>& logits) {
  Normalizer total;
  for (const float x : logits) total = merge(total, normalizer_of(x));
  return total;
}

TEST(NormalizerTest, TwoAtTwoAndOneAtFourMergeToTheWorkedPair) {
  const Normalizer merged = merge({2, 2}, {4, 1});
  EXPECT_EQ(merged.max, 4);
  EXPECT_FLOAT_EQ(merged.sum, 1 + 2 * std::exp(-2.0f));
  const Normalizer swapped = merge({4, 1}, {2, 2});
  EXPECT_EQ(swapped.max, 4);
  EXPECT_FLOAT_EQ(swapped.sum, merged.sum);
}

TEST(NormalizerTest, RawSumsAtDifferentMaximaAreNotAdded) {
  EXPECT_LT(merge({2, 2}, {4, 1}).sum, 2.0f);  // 2 + 1 would be 3
}

TEST(NormalizerTest, EmptyWithEmptyIsEmptyNotNaN) {
  const Normalizer merged = merge({}, {});
  EXPECT_EQ(merged.max, -kInf);
  EXPECT_EQ(merged.sum, 0);
}

TEST(NormalizerTest, EmptyChangesNothingOnEitherSide) {
  for (const float max : {-3.5f, 0.0f, -3e38f, 3e38f}) {
    for (const Normalizer& merged : {merge({max, 1.25f}, {}), merge({}, {max, 1.25f})}) {
      EXPECT_EQ(merged.max, max);
      EXPECT_EQ(merged.sum, 1.25f);
    }
  }
}

TEST(NormalizerTest, MinusInfinityCountsForNothing) {
  const Normalizer some = of_all({-kInf, 1, -kInf, 1});
  EXPECT_EQ(some.max, 1);
  EXPECT_EQ(some.sum, 2);
  const Normalizer none = of_all({-kInf, -kInf});
  EXPECT_EQ(none.max, -kInf);
  EXPECT_EQ(none.sum, 0);
}

TEST(NormalizerTest, NaNAndPlusInfinityMakeTheSumNaNWhereverTheyStand) {
  for (const float bad : {kNaN, kInf}) {
    EXPECT_TRUE(std::isnan(of_all({bad}).sum));
    EXPECT_TRUE(std::isnan(of_all({bad, 1, 2}).sum));
    EXPECT_TRUE(std::isnan(of_all({1, bad, 2}).sum));
    EXPECT_TRUE(std::isnan(of_all({1, 2, bad}).sum));
    EXPECT_TRUE(std::isnan(of_all({-kInf, bad, -kInf}).sum));
    EXPECT_TRUE(std::isnan(of_all({bad, kInf}).sum));
  }
}

TEST(NormalizerTest, MaximaAtTheEndsOfTheRangeNeitherOverflowNorExceedOne) {
  const Normalizer far = of_all({-3e38f, 3e38f});
  EXPECT_EQ(far.max, 3e38f);
  EXPECT_EQ(far.sum, 1);
  const Normalizer low = of_all({-3e38f, -3e38f, -3e38f});
  EXPECT_EQ(low.max, -3e38f);
  EXPECT_EQ(low.sum, 3);
}

TEST(NormalizerTest, AnyGroupingGivesThePairOfTheWhole) {
  std::vector<float> logits;
  for (int i = 0; i < 100; ++i) logits.push_back(20 * std::sin(static_cast<float>(i) * 1.7f));
  double max = -INFINITY;
  for (const float x : logits) max = std::max<double>(max, x);
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  for (const size_t cut : {0, 1, 37, 99, 100}) {
    const auto middle = logits.begin() + static_cast<std::ptrdiff_t>(cut);
    const Normalizer merged =
        merge(of_all({logits.begin(), middle}), of_all({middle, logits.end()}));
    EXPECT_EQ(merged.max, static_cast<float>(max));
    // 100 merges, each a rescale (exp and product) and an addition.
    EXPECT_NEAR(merged.sum, sum, sum * 100 * 6 * 0x1p-24);
  }
}

TEST(SoftmaxSplitTest, WorkedScratchOfFourRowsOf32769) {
  const SoftmaxSplit split{4, 32769, 1024};
  EXPECT_EQ(split.chunks(), 33);
  EXPECT_EQ(split.scratch_bytes(), 1088);
  EXPECT_EQ(split.begin(32), 32768);
  EXPECT_EQ(split.size(31), 1024);
  EXPECT_EQ(split.size(32), 1);
}

TEST(SoftmaxSplitTest, ChunksCoverEachLengthOnce) {
  for (const int64_t length : {1, 1023, 1024, 1025, 2047, 2048, 2049}) {
    const SoftmaxSplit split{1, length};
    int64_t covered = 0;
    for (int64_t t = 0; t < split.chunks(); ++t) {
      EXPECT_EQ(split.begin(t), covered);
      EXPECT_GT(split.size(t), 0);
      covered += split.size(t);
    }
    EXPECT_EQ(covered, length);
  }
}

TEST(SoftmaxSplitTest, EmptyRowHasNoChunk) { EXPECT_EQ((SoftmaxSplit{3, 0}).chunks(), 0); }

TEST(SoftmaxSplitTest, LengthsPast32BitsDoNotWrap) {
  const SoftmaxSplit split{1 << 20, (int64_t{1} << 33) + 1};
  EXPECT_EQ(split.chunks(), (int64_t{1} << 23) + 1);
  EXPECT_EQ(split.scratch_bytes(), 8 * (int64_t{1} << 20) * ((int64_t{1} << 23) + 2));
}

}  // namespace
}  // namespace me
