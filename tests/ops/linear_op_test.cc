// Linear without its kernels: what oneDNN's kernel refuses, inference, cost, the order of tiles and
// the place of parts of K.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/linear/linear.h"
#include "ops/linear/split_parts.h"
#include "ops/linear/tile_order.h"
#include "ops/registry.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

TEST(LinearSupportTest, ExtentsBeyondThirtyTwoBitsAreRefusedWithAReason) {
  const KernelEntry* kernel = find_kernel("linear_cpu_onednn");
  if (kernel == nullptr) GTEST_SKIP();
  LinearAttrs attrs;
  for (int axis = 0; axis < 3; ++axis) {
    int64_t extents[3] = {2, 2, 2};  // M, N, K
    extents[axis] = int64_t{1} << 31;
    const auto [m, n, k] = extents;
    Problem p;
    p.op = find_op("linear");
    p.attrs = &attrs;
    p.inputs = {dense(DType::kF32, {m, k}), dense(DType::kF32, {k, n})};
    p.outputs = {dense(DType::kF32, {m, n})};
    const Support support = kernel->supports(p);
    EXPECT_FALSE(support.ok);
    EXPECT_NE(support.reason.find("2147483648"), std::string::npos);
  }
}

TEST(LinearInferTest, ShapesAndTypes) {
  const TensorType x{DType::kF16, {2, 3, 4}};
  const TensorType w{DType::kF16, {4, 5}};
  EXPECT_EQ(infer_error("linear", {}, {x, w}), "");
  EXPECT_EQ(infer_error("linear", {}, {x, w, {DType::kF16, {5}}}), "");
  EXPECT_EQ(infer_error("linear", {}, {x, w, {DType::kF32, {5}}}), "");
  const auto refuses = [](const std::string& error, std::string_view field) {
    EXPECT_NE(error.find(std::string(field) + ": found"), std::string::npos) << error;
  };
  refuses(infer_error("linear", {}, {x, {DType::kF16, {5, 4}}}), "linear.weight");
  refuses(infer_error("linear", {}, {x, {DType::kF32, {4, 5}}}), "linear.weight");
  refuses(infer_error("linear", {}, {x, {DType::kF16, {4}}}), "linear.weight");
  refuses(infer_error("linear", {}, {{DType::kF16, {}}, w}), "linear.x");
  refuses(infer_error("linear", {}, {x, w, {DType::kF16, {4}}}), "linear.bias");
  refuses(infer_error("linear", {}, {x, w, {DType::kF16, {1, 5}}}), "linear.bias");
  refuses(infer_error("linear", {}, {x, w, {DType::kBF16, {5}}}), "linear.bias");
  refuses(infer_error("linear", {{"weight_layout", std::string("NK")}}, {x, w}), "linear.weight");
  refuses(infer_error("linear", {{"weight_layout", std::string("7")}}, {x, w}),
          "linear.weight_layout");
  refuses(infer_error("linear", {{"activation", std::string("GELU")}}, {x, w}),
          "linear.activation");
  refuses(infer_error("linear", {{"output_dtype", std::string("DTYPE_UNSPECIFIED")}}, {x, w}),
          "linear.output_dtype");
  const int64_t big = int64_t{1} << 40;
  refuses(infer_error("linear", {}, {{DType::kF32, {big, 1}}, {DType::kF32, {1, big}}}),
          "linear.x");
}

TEST(LinearInferTest, UnknownDimensionsPassAndBiasTellsN) {
  const LinearAttrs attrs;
  const std::vector<TensorType> inputs{{DType::kBF16, {kUnknownDim, 4}},
                                       {DType::kBF16, {kUnknownDim, kUnknownDim}},
                                       {DType::kBF16, {5}}};
  const auto types = find_op("linear")->infer(attrs, inputs, {});
  ASSERT_TRUE(types.ok());
  EXPECT_EQ(to_string(types.value()[0]), "bf16[?, 5]");
}

TEST(LinearWorkTest, CountsProductsAndEpilogue) {
  const PreparedCase c = make_problem(
      "linear", {{"activation", std::string("RELU")}},
      {dense(DType::kF32, {3, 5}), dense(DType::kF32, {5, 7}), dense(DType::kF32, {7})});
  const Work work = c.problem.op->work(c.problem);
  EXPECT_EQ(work.flops, 3 * 7 * (2 * 5 + 2));
  EXPECT_EQ(work.bytes, 4 * (3 * 5 + 5 * 7 + 7 + 3 * 7));
}

// ---- tile order ----

TEST(TileOrderTest, PartialLastGroup) {  // W
  const auto at = [](int index) {
    const Tile<int> tile = grouped_tile(index, 3, 2, 2);
    return std::pair{tile.m, tile.n};
  };
  EXPECT_EQ(at(0), std::pair(0, 0));
  EXPECT_EQ(at(1), std::pair(1, 0));
  EXPECT_EQ(at(2), std::pair(0, 1));
  EXPECT_EQ(at(3), std::pair(1, 1));
  EXPECT_EQ(at(4), std::pair(2, 0));
  EXPECT_EQ(at(5), std::pair(2, 1));
}

TEST(TileOrderTest, EveryTileOnce) {
  for (int m_tiles = 1; m_tiles <= 17; ++m_tiles) {
    for (int n_tiles = 1; n_tiles <= 17; ++n_tiles) {
      for (int group = 1; group <= 19; ++group) {
        std::set<std::pair<int, int>> seen;
        for (int i = 0; i < m_tiles * n_tiles; ++i) {
          const Tile<int> tile = grouped_tile(i, m_tiles, n_tiles, group);
          ASSERT_TRUE(tile.m >= 0 && tile.m < m_tiles && tile.n >= 0 && tile.n < n_tiles);
          seen.emplace(tile.m, tile.n);
        }
        ASSERT_EQ(seen.size(), static_cast<size_t>(m_tiles * n_tiles));
      }
    }
  }
}

TEST(TileOrderTest, SixtyFourBitIndices) {
  const int64_t m_tiles = int64_t{1} << 24;
  const Tile<int64_t> last = grouped_tile(m_tiles * m_tiles - 1, m_tiles, m_tiles, int64_t{8});
  EXPECT_EQ(last.m, m_tiles - 1);
  EXPECT_EQ(last.n, m_tiles - 1);
}

// ---- parts of K ----

// Parts come into stages that nothing reads or fills from then on, in blocks whose steps differ.
TEST(SplitPartsTest, NothingReadsTheirStagesWhenTheyCome) {
  for (int stages = kPartStages; stages <= 17; ++stages) {
    for (int bits = 0; bits <= 3; ++bits) {
      for (int k_steps = 1 << bits; k_steps <= 150; ++k_steps) {
        const int at = parts_stage(k_steps, bits, stages);
        ASSERT_TRUE(at >= 0 && at + kPartStages <= stages);
        int expected = 0;
        for (int rank = 0; rank < 1 << bits; ++rank) {
          const int first = first_step_of(k_steps, rank, bits);
          const int steps = first_step_of(k_steps, rank + 1, bits) - first;
          ASSERT_EQ(first, expected);
          expected += steps;
          const int come = step_parts_may_come(steps, stages);
          ASSERT_TRUE(come >= 0 && come <= steps);
          // Behind the last step every product has ended; in front of one, that of the step before
          // may still run.
          for (int step = come == steps ? steps : std::max(0, come - 1); step < steps; ++step) {
            const int stage = step % stages;
            ASSERT_TRUE(stage < at || stage >= at + kPartStages)
                << stages << " stages, " << k_steps << " steps in " << (1 << bits) << ", part "
                << rank << ", step " << step;
          }
        }
        ASSERT_EQ(expected, k_steps);
      }
    }
  }
}

}  // namespace
}  // namespace me::testing
