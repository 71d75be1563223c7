#include "engine/plan/arena.h"

#include <gtest/gtest.h>

#include <random>

namespace me {
namespace {

int64_t padded(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// What every layout has to be: aligned, inside the arena, no two blocks alive together overlapping,
// and between the bound and the sum.
void expect_sound(const std::vector<ArenaBlock>& blocks) {
  const auto layout = plan_arena(blocks);
  ASSERT_TRUE(layout.has_value());
  ASSERT_EQ(layout->offsets.size(), blocks.size());
  EXPECT_GE(layout->bytes, layout->lower_bound_bytes);
  EXPECT_LE(layout->bytes, layout->sum_bytes);
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(layout->offsets[i] % kArenaAlignment, 0);
    EXPECT_LE(layout->offsets[i] + blocks[i].bytes, layout->bytes);
    for (size_t j = 0; j < i; ++j) {
      if (blocks[i].bytes == 0 || blocks[j].bytes == 0) continue;
      const bool together = blocks[i].first <= blocks[j].last && blocks[j].first <= blocks[i].last;
      const bool apart = layout->offsets[i] + blocks[i].bytes <= layout->offsets[j] ||
                         layout->offsets[j] + blocks[j].bytes <= layout->offsets[i];
      EXPECT_TRUE(!together || apart) << "blocks " << j << " and " << i << " share bytes";
    }
  }
}

TEST(ArenaTest, ChainSharesTwoBuffers) {
  const auto layout = plan_arena(std::vector<ArenaBlock>{{1000, 0, 1}, {1000, 1, 2}, {1000, 2, 3}});
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->bytes, 2 * padded(1000));
  EXPECT_EQ(layout->lower_bound_bytes, 2 * padded(1000));
  EXPECT_EQ(layout->sum_bytes, 3 * padded(1000));
}

TEST(ArenaTest, BlocksOfOneStepNeverShare) { expect_sound({{1, 3, 3}, {256, 3, 3}, {257, 3, 3}}); }

TEST(ArenaTest, EmptyBlocksCostNothing) {
  const auto layout = plan_arena(std::vector<ArenaBlock>{{0, 0, 5}, {0, 0, 5}});
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->bytes, 0);
}

TEST(ArenaTest, RandomGraphsAreSound) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    std::vector<ArenaBlock> blocks;
    for (int i = 0; i < 60; ++i) {
      const int first = static_cast<int>(random() % 40);
      blocks.push_back(
          {static_cast<int64_t>(random() % 5000), first, first + static_cast<int>(random() % 10)});
    }
    expect_sound(blocks);
  }
}

// Past the size where the order is by time.
TEST(ArenaTest, LongChainIsSoundAndNearItsBound) {
  std::vector<ArenaBlock> blocks;
  for (int i = 0; i < 100000; ++i) blocks.push_back({1000 + i % 7, i, i + 1});
  const auto layout = plan_arena(blocks);
  ASSERT_TRUE(layout.has_value());
  for (size_t i = 1; i < blocks.size(); ++i) {
    EXPECT_NE(layout->offsets[i], layout->offsets[i - 1]);
  }
  EXPECT_LE(layout->bytes, 2 * layout->lower_bound_bytes);
}

TEST(ArenaTest, RefusesSumsPast62Bits) {
  EXPECT_EQ(plan_arena(std::vector<ArenaBlock>{{int64_t{1} << 61, 0, 0}, {int64_t{1} << 61, 1, 1}}),
            std::nullopt);
  EXPECT_EQ(plan_arena(std::vector<ArenaBlock>{{INT64_MAX, 0, 0}}), std::nullopt);
}

}  // namespace
}  // namespace me
