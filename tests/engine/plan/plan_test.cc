#include "engine/plan/plan.h"

#include "tests/engine/engine_test.h"

namespace me::testing {
namespace {

using PlanTest = KernelsTest;

size_t index_of(const Plan& plan, const std::string& value) {
  return static_cast<size_t>(plan.graph().find_value(value));
}

// x [2, 6, 4] → transposed, sliced, softmax; and a reshape that strides cannot express.
const char* const kViews = R"(
  inputs { name: "x" dtype: F32 dims: [{size: 2}, {size: 6}, {size: 4}] }
  nodes { name: "turn" inputs: "x" outputs: "t" transpose { permutation: [0, 2, 1] } }
  nodes { name: "cut" inputs: "t" outputs: "c" slice { axis: 2 start: 1 end: 5 } }
  nodes { name: "soft" inputs: "c" outputs: "y" softmax {} }
  nodes { name: "flat" inputs: "t" outputs: "f" reshape { dims: [{size: 48}] } }
  nodes { name: "sum" inputs: ["f", "f"] outputs: "z" add {} }
  outputs { name: "y" } outputs { name: "z" })";

TEST_F(PlanTest, ViewsRunNothingAndShareMemory) {
  const auto plan = plan_for(graph_from_text(kViews));
  EXPECT_EQ(step_of(*plan, "turn").kernel, nullptr);
  EXPECT_EQ(step_of(*plan, "cut").kernel, nullptr);
  const PlannedValue& x = plan->values()[index_of(*plan, "x")];
  const PlannedValue& c = plan->values()[index_of(*plan, "c")];
  EXPECT_EQ(c.desc.strides, (Dims{24, 1, 4}));
  EXPECT_EQ(c.offset_bytes, x.offset_bytes + 4 * 4);
  EXPECT_EQ(c.desc.alignment_bytes, 16);
  EXPECT_EQ(step_of(*plan, "soft").problem.inputs[0].strides, (Dims{24, 1, 4}));
}

TEST_F(PlanTest, ReshapeThatStridesCannotExpressIsAPlannedCopy) {
  const auto plan = plan_for(graph_from_text(kViews));
  const Step& flat = step_of(*plan, "flat");
  ASSERT_NE(flat.kernel, nullptr);
  EXPECT_EQ(flat.kernel->name, "reshape_cpu_copy");
  EXPECT_NE(flat.reason.find("a copy"), std::string::npos);
  EXPECT_NE(plan->explain().find("reshape_cpu_copy: a copy: strides cannot express it"),
            std::string::npos);
}

TEST_F(PlanTest, ViewThatIsAnOutputOwnsItsMemory) {
  const auto plan = plan_for(graph_from_text(R"(
    inputs { name: "x" dtype: F32 dims: [{size: 2}, {size: 6}] }
    nodes { name: "turn" inputs: "x" outputs: "t" transpose { permutation: [1, 0] } }
    outputs { name: "t" })"));
  ASSERT_NE(step_of(*plan, "turn").kernel, nullptr);
  const PlannedValue& t = plan->values()[index_of(*plan, "t")];
  EXPECT_TRUE(t.desc.is_dense());
  EXPECT_NE(t.offset_bytes, plan->values()[index_of(*plan, "x")].offset_bytes);
}

TEST_F(PlanTest, MemoryIsSharedByLivenessThroughViews) {
  // t1 stays alive through its view until "late" reads it, though its own last reader is "v".
  const auto plan = plan_for(graph_from_text(R"(
    inputs { name: "x" dtype: F32 dims: [{size: 16}, {size: 64}] }
    nodes { name: "a" inputs: "x" outputs: "t1" softmax {} }
    nodes { name: "v" inputs: "t1" outputs: "w" transpose { permutation: [1, 0] } }
    nodes { name: "b" inputs: "x" outputs: "t2" softmax {} }
    nodes { name: "c" inputs: "t2" outputs: "t3" softmax {} }
    nodes { name: "d" inputs: "t3" outputs: "t4" softmax {} }
    nodes { name: "late" inputs: "w" outputs: "y" softmax {} }
    nodes { name: "e" inputs: "t4" outputs: "z" softmax {} }
    outputs { name: "y" } outputs { name: "z" })"));
  const auto offset = [&](const char* name) {
    return plan->values()[index_of(*plan, name)].offset_bytes;
  };
  EXPECT_NE(offset("t1"), offset("t2"));
  EXPECT_NE(offset("t1"), offset("t3"));
  EXPECT_NE(offset("t1"), offset("t4"));
  EXPECT_EQ(offset("t2"), offset("t4"));
  EXPECT_LT(plan->arena().bytes, plan->arena().sum_bytes);
  EXPECT_EQ(plan->arena().bytes, plan->arena().lower_bound_bytes);
}

TEST_F(PlanTest, WorkspaceOfSplitSoftmaxIsExact) {  // W: 8·M·(T+1) with M = 4, T = 33
  PlanOptions options;
  options.device.threads = 2;
  options.kernels = {{"soft", "softmax_cpu_split"}};
  const auto graph = graph_from_text(R"(
    inputs { name: "x" dtype: F32 dims: [{size: 4}, {size: 32769}] }
    nodes { name: "soft" inputs: "x" outputs: "y" softmax {} }
    outputs { name: "y" })");
  const auto plan = Plan::make(graph, options);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  EXPECT_EQ(step_of(*plan.value(), "soft").workspace_bytes, 1088);
  EXPECT_NE(plan.value()->explain().find("workspace  1088 bytes"), std::string::npos);
}

TEST_F(PlanTest, ChoiceIsExplainedForAndAgainst) {
  const auto plan = plan_for(graph_from_text(kViews));
  const Step& soft = step_of(*plan, "soft");
  ASSERT_NE(soft.kernel, nullptr);
  EXPECT_FALSE(soft.reason.empty());
  ASSERT_EQ(soft.rejected.size(), 1u);
  EXPECT_FALSE(soft.rejected[0].reason.empty());
  EXPECT_NE(plan->explain().find(soft.rejected[0].name), std::string::npos);
}

TEST_F(PlanTest, KernelsByNameAreTakenOrRefused) {
  const auto graph = graph_from_text(kViews);
  const auto error = [&](const std::string& node, const std::string& kernel) {
    PlanOptions options;
    options.device.threads = 2;
    options.kernels = {{node, kernel}};
    const auto plan = Plan::make(graph, options);
    return plan.ok() ? "" : plan.error().to_string();
  };
  EXPECT_EQ(error("soft", "softmax_cpu_split"), "");
  EXPECT_NE(error("soft", "nonsense").find("kernel \"nonsense\" cannot be used"),
            std::string::npos);
  EXPECT_NE(error("soft", "add_cpu").find("kernel \"add_cpu\" cannot be used"), std::string::npos);
  EXPECT_NE(error("nobody", "add_cpu").find("no node \"nobody\""), std::string::npos);
}

TEST_F(PlanTest, ShapesThatDisagreeUnderTheSymbolsAreRefused) {
  const auto graph = graph_from_text(R"(
    inputs { name: "a" dtype: F32 dims: [{symbol: "n"}] }
    inputs { name: "b" dtype: F32 dims: [{size: 4}] }
    nodes { name: "sum" inputs: ["a", "b"] outputs: "y" add {} }
    outputs { name: "y" })");
  PlanOptions options;
  options.symbols = {{"n", 4}};
  EXPECT_TRUE(Plan::make(graph, options).ok());
  options.symbols = {{"n", 5}};
  const auto plan = Plan::make(graph, options);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().node, "sum");
}

TEST_F(PlanTest, SizesThatOverflowAreRefused) {
  const auto graph = graph_from_text(R"(
    inputs { name: "a" dtype: F32 dims: [{symbol: "n"}, {symbol: "n"}] }
    nodes { name: "soft" inputs: "a" outputs: "y" softmax {} }
    outputs { name: "y" })");
  PlanOptions options;
  options.symbols = {{"n", int64_t{1} << 40}};
  EXPECT_FALSE(Plan::make(graph, options).ok());
}

}  // namespace
}  // namespace me::testing
