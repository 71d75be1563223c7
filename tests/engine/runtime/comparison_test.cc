#include "engine/runtime/comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

#include "ops/registry.h"
#include "tests/engine/engine_test.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

class ComparisonTest : public KernelsTest {
 protected:
  ComparisonTest()
      : plan_(plan_for(graph_from_text(R"(
    inputs { name: "x" dtype: F32 dims: [{size: 5}, {size: 300}] }
    nodes { name: "soft" inputs: "x" outputs: "p" softmax {} }
    nodes { name: "turn" inputs: "p" outputs: "t" transpose { permutation: [1, 0] } }
    nodes { name: "sum" inputs: ["t", "t"] outputs: "y" add {} }
    outputs { name: "y" })"))) {
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    for (float& x : x_) x = normal(random) * (random() % 64 == 0 ? 10.0f : 1.0f);
  }

  Comparison run() {
    auto result = compare(plan_, {view_of(dense(DType::kF32, {5, 300}), x_.data())}, {});
    if (!result.ok()) throw std::runtime_error(result.error().to_string());
    return std::move(result).value();
  }

  // Makes the first node run `kernel`. The plan is this test's own.
  void plant(const KernelEntry& kernel) { const_cast<Step&>(plan_->steps()[0]).kernel = &kernel; }

  std::shared_ptr<const Plan> plan_;
  std::vector<float> x_ = std::vector<float>(1500);
};

TEST_F(ComparisonTest, EveryNodeWithItsErrors) {
  const Comparison result = run();
  ASSERT_EQ(result.nodes.size(), 3U);
  EXPECT_EQ(result.first_failure, -1);
  const NodeComparison& soft = result.nodes[0];
  EXPECT_TRUE(soft.kernels[0].check.passed);
  EXPECT_GT(soft.kernels[0].time_us->median, 0);
  EXPECT_EQ(soft.custom.inherited, 0);
  EXPECT_GT(soft.custom.total, 0);
  EXPECT_LT(soft.custom.total, 1e-5);
  EXPECT_TRUE(result.nodes[1].kernels.empty()) << "a view runs nothing";
  // Doubling is exact: all the error there is was there before.
  EXPECT_EQ(result.nodes[2].custom.added, 0);
  EXPECT_GT(result.nodes[2].custom.inherited, 0);
  EXPECT_GT(result.custom_us->median, 0);
}

TEST_F(ComparisonTest, TheFirstNodeOverItsBoundIsNamedAndNotTimed) {
  static const KernelEntry* const right = plan_->steps()[0].kernel;
  KernelEntry wrong = *right;
  wrong.name = "softmax_without_its_last_row";
  wrong.prepare = [](const Problem& problem, const Buffers& buffers) {
    Problem shorter = problem;
    shorter.inputs[0].shape[0] = shorter.outputs[0].shape[0] = 4;  // the fifth row stays poison
    return right->prepare(shorter, buffers);
  };
  plant(wrong);
  const Comparison result = run();
  EXPECT_EQ(result.first_failure, 0);
  EXPECT_FALSE(result.nodes[0].kernels[0].check.passed);
  EXPECT_FALSE(result.nodes[0].kernels[0].time_us.has_value());
  EXPECT_EQ(result.nodes[0].custom.nan, 300);
  EXPECT_TRUE(std::isinf(result.nodes[0].custom.added));
  // The node after it is right about what it was given.
  EXPECT_TRUE(result.nodes[2].kernels[0].check.passed);
  EXPECT_EQ(result.nodes[2].custom.added, 0);
  EXPECT_TRUE(std::isinf(result.nodes[2].custom.inherited));
}

}  // namespace
}  // namespace me::testing
