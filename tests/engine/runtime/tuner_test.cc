#include "engine/runtime/tuner.h"

#include <gtest/gtest.h>

#include <fstream>

#include "engine/runtime/kernel_timer.h"
#include "ops/registry.h"
#include "tests/engine/engine_test.h"
#include "tests/engine/temp_folder.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

// Softmax has two kernels on either backend.
class TunerTest : public KernelsTest {
 protected:
  std::shared_ptr<const Graph> graph_ = graph_from_text(R"(
      inputs { name: "x" dtype: F32 dims: [{size: 4}, {size: 5000}] }
      nodes { name: "soft" inputs: "x" outputs: "y" softmax {} }
      outputs { name: "y" })");
  std::shared_ptr<TuningCache> cache_ = std::make_shared<TuningCache>("this machine");

  static PlanOptions options() {
    PlanOptions options;
    options.device = test_device()->info();
    return options;
  }
  TunedPlan tune(const PlanOptions& with) {
    auto tuned = make_tuned_plan(graph_, with, cache_);
    if (!tuned.ok()) throw std::runtime_error(tuned.error().to_string());
    return tuned.value();
  }
  // What the cache knows of the graph's node.
  std::string key() {
    const auto plan = Plan::make(graph_, options());
    Problem problem = plan.value()->steps().at(0).problem;
    problem.config.clear();
    return tuning_key(problem, graph_->nodes.at(0).fields);
  }
};

TEST_F(TunerTest, MeasuresOnceAndThePlanTakesTheFastest) {
  const TunedPlan first = tune(options());
  EXPECT_EQ(first.measured, 1);
  const auto found = cache_->find(key());
  ASSERT_TRUE(found.has_value());
  EXPECT_GT(found->time_us, 0);
  const Step& step = first.plan->steps().at(0);
  EXPECT_EQ(step.kernel->name, found->kernel);
  EXPECT_EQ(step.problem.config, found->config);
  EXPECT_TRUE(step.reason.starts_with("measured")) << step.reason;
  EXPECT_EQ(tune(options()).measured, 0);
}

TEST_F(TunerTest, WhatWasMeasuredWinsOverWhatKernelsExpect) {
  const auto plan = Plan::make(graph_, options());
  const Step& expected = plan.value()->steps().at(0);
  std::string other;
  for (const RejectedKernel& rejected : expected.rejected) {
    if (rejected.reason.starts_with("estimated")) other = rejected.name;
  }
  ASSERT_FALSE(other.empty());
  cache_->put(key(), {other, expected.problem.config, 1});
  EXPECT_EQ(tune(options()).plan->steps().at(0).kernel->name, other);

  // Asked for by name, another one is taken; and one that is not there is not.
  PlanOptions named = options();
  named.kernels["soft"] = std::string(expected.kernel->name);
  EXPECT_EQ(tune(named).plan->steps().at(0).kernel, expected.kernel);
  cache_->put(key(), {"softmax_of_long_ago", "", 1});
  EXPECT_EQ(tune(options()).plan->steps().at(0).kernel, expected.kernel);
}

TEST_F(TunerTest, TheFileKeepsEveryMachinesResults) {
  TempFolder folder;
  const std::string path = folder.path("tuning.json");
  TuningCache one("one");
  ASSERT_TRUE(one.load(path).ok());  // there is none yet
  one.put("key", {"kernel", "config", 2.5});
  ASSERT_TRUE(one.save(path).ok());
  TuningCache two("two");
  ASSERT_TRUE(two.load(path).ok());
  EXPECT_FALSE(two.find("key").has_value());
  two.put("key", {"another", "", 1});
  ASSERT_TRUE(two.save(path).ok());
  TuningCache again("one");
  ASSERT_TRUE(again.load(path).ok());
  EXPECT_EQ(again.find("key"), (TunedKernel{"kernel", "config", 2.5}));
  for (const char* text : {"", "{", "[]", R"({"format": 2, "machines": {}})",
                           R"({"format": 1, "machines": {"one": {"key": 3}}})"}) {
    std::ofstream(path) << text;
    EXPECT_FALSE(TuningCache("one").load(path).ok()) << text;
  }
}

// The limit of a kernel's shared memory is one for all problems that are prepared with it.
TEST(CudaKernelTimer, ConfigurationsPreparedTogetherAllRun) {
  OpCase c{"linear", {{"weight_layout", std::string("NK")}}, {}};
  c.inputs.push_back(HostTensor(DType::kBF16, {64, 1024}));
  c.inputs.push_back(HostTensor(DType::kBF16, {512, 1024}));
  const PreparedCase prepared = make_problem(c);
  int run = 0;
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->op != "linear" || !is_under_test(*kernel) || kernel->configs == nullptr) continue;
    if (!kernel->supports(prepared.problem).ok) continue;
    auto buffers = ProblemBuffers::create(test_device(), prepared.problem);
    ASSERT_TRUE(buffers.ok());
    buffers.value().randomize_inputs();
    std::vector<std::unique_ptr<TimedKernel>> timed;
    for (const KernelConfig& config : kernel->configs(prepared.problem)) {
      auto created = TimedKernel::create(*kernel, buffers.value(), config.name);
      ASSERT_TRUE(created.ok()) << created.error().to_string();
      timed.push_back(std::move(created).value());
    }
    for (const auto& one : timed) {
      EXPECT_NO_THROW(one->run_once());
      ++run;
    }
  }
  if (run == 0) GTEST_SKIP() << "no kernel has configurations here";
}

}  // namespace
}  // namespace me::testing
