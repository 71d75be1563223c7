#include "engine/runtime/session.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <stdexcept>

#include "engine/model/loader.h"
#include "ops/base/check.h"
#include "tests/engine/engine_test.h"
#include "tests/engine/runtime/allocation_count.h"

namespace me::testing {
namespace {

using SessionTest = KernelsTest;

void fill(const TensorView& x, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < x.count(); ++i) {
    store_f32(x.data, i, x.dtype, normal(random) * (random() % 64 == 0 ? 10.0f : 1.0f));
  }
}

void fill_inputs(const Session& session, uint64_t seed) {
  for (size_t i = 0; i < session.plan().graph().inputs.size(); ++i)
    fill(session.input(i), seed + i);
}

std::string bytes_of(const TensorView& y) {
  return {static_cast<const char*>(y.data), static_cast<size_t>(y.bytes())};
}

std::unique_ptr<Session> session_for(std::shared_ptr<const Plan> plan) {
  auto session = Session::create(std::move(plan));
  if (!session.ok()) throw std::runtime_error(session.error().to_string());
  return std::move(session).value();
}

std::shared_ptr<const Graph> shipped(const std::string& name) {
  auto graph = load_model(std::string(ME_SOURCE_DIR) + "/models/" + name);
  if (!graph.ok()) throw std::runtime_error(graph.error().to_string());
  return std::make_shared<const Graph>(std::move(graph).value());
}

// Every node's output against the oracle, on the inputs that the node really got: with every value
// an output of the graph, none is overwritten.
void expect_every_node_matches_its_oracle(const Graph& graph, const Symbols& symbols) {
  Graph open = graph;
  open.outputs.clear();
  for (size_t v = 0; v < open.values.size(); ++v) open.outputs.push_back(static_cast<int>(v));
  const auto session = session_for(plan_for(std::make_shared<const Graph>(open), symbols));
  fill_inputs(*session, 5);
  session->run();
  for (const Step& step : session->plan().steps()) {
    const Node& node = open.nodes[static_cast<size_t>(step.node)];
    SCOPED_TRACE(node.name);
    std::vector<F64Tensor> inputs;
    for (int v : node.inputs) inputs.push_back(to_f64(session->output(static_cast<size_t>(v))));
    const OracleOutput want = node.op->oracle(step.problem, inputs).at(0);
    const CheckReport report =
        check_output(session->output(static_cast<size_t>(node.outputs[0])), want);
    EXPECT_TRUE(report.passed) << report.message;
  }
}

TEST_F(SessionTest, ShippedModelsMatchTheOracleAtEveryNode) {
  expect_every_node_matches_its_oracle(*shipped("linear_relu.txtpb"), {});
  expect_every_node_matches_its_oracle(*shipped("attention.txtpb"), {});
  expect_every_node_matches_its_oracle(*shipped("softmax.txtpb"), {});
  expect_every_node_matches_its_oracle(*shipped("chain.txtpb"), {});
  expect_every_node_matches_its_oracle(*shipped("digits.txtpb"), {{"batch", 33}});
}

// The same graph with memory shared by liveness and with every value kept gives the same bits, so
// nothing is overwritten while it is needed.
TEST_F(SessionTest, SharedMemoryChangesNoBit) {
  const auto graph = shipped("chain.txtpb");
  Graph open = *graph;
  open.outputs.clear();
  for (size_t v = 0; v < open.values.size(); ++v) open.outputs.push_back(static_cast<int>(v));
  const auto shared = session_for(plan_for(graph));
  const auto apart = session_for(plan_for(std::make_shared<const Graph>(open)));
  fill_inputs(*shared, 9);
  fill_inputs(*apart, 9);
  shared->run();
  apart->run();
  const auto result = static_cast<size_t>(graph->outputs[0]);
  EXPECT_EQ(bytes_of(shared->output(0)), bytes_of(apart->output(result)));
}

TEST_F(SessionTest, RunsAgainOnTheSameAndOnNewInputs) {
  const auto session = session_for(plan_for(shipped("chain.txtpb")));
  fill_inputs(*session, 1);
  session->run();
  const std::string first = bytes_of(session->output(0));
  session->run();
  EXPECT_EQ(bytes_of(session->output(0)), first) << "the inputs did not survive the first run";
  fill_inputs(*session, 2);
  session->run();
  EXPECT_NE(bytes_of(session->output(0)), first);
  fill_inputs(*session, 1);
  session->run();
  EXPECT_EQ(bytes_of(session->output(0)), first);
}

TEST_F(SessionTest, EagerAndReplayedRunsGiveTheSameBits) {
  for (const char* model : {"chain.txtpb", "attention.txtpb", "softmax.txtpb"}) {
    SCOPED_TRACE(model);
    const auto session = session_for(plan_for(shipped(model)));
    fill_inputs(*session, 1);
    session->run();
    const std::string replayed = bytes_of(session->output(0));
    std::memset(session->output(0).data, 0xFF, replayed.size());
    session->copy_inputs();
    session->launch_eager();
    session->copy_outputs();
    session->wait();
    EXPECT_EQ(bytes_of(session->output(0)), replayed);
  }
}

TEST_F(SessionTest, OldOutputsNeverMatter) {
  const auto session = session_for(plan_for(shipped("chain.txtpb")));
  fill_inputs(*session, 1);
  session->run();
  const std::string first = bytes_of(session->output(0));
  std::memset(session->output(0).data, 0xFF, first.size());
  session->run();
  EXPECT_EQ(bytes_of(session->output(0)), first);
}

TEST_F(SessionTest, ARunAllocatesNothing) {
  struct alignas(64) Line {
    char bytes[64];
  };
  start_counting_allocations();
  int* volatile one = new int(1);  // volatile, or the compiler leaves the pair out
  delete one;
  int* volatile many = new int[2];
  delete[] many;
  Line* volatile aligned = new Line();
  delete aligned;
  ASSERT_EQ(stop_counting_allocations(), 3) << "the count does not count";
  const auto session = session_for(plan_for(graph_from_text(R"(
    inputs { name: "q" dtype: F16 dims: [{size: 1}, {size: 4}, {size: 70}, {size: 24}] }
    inputs { name: "k" dtype: F16 dims: [{size: 1}, {size: 2}, {size: 70}, {size: 24}] }
    nodes { name: "att" inputs: ["q", "k", "k"] outputs: "o" attention { causal: true } }
    nodes { name: "turn" inputs: "o" outputs: "t" transpose { permutation: [0, 2, 1, 3] } }
    nodes { name: "flat" inputs: "t" outputs: "f" reshape { dims: [{size: 70}, {size: 96}] } }
    nodes { name: "soft" inputs: "f" outputs: "y" softmax {} }
    nodes { name: "grad" inputs: ["y", "f"] outputs: "d" softmax_grad {} }
    nodes { name: "sum" inputs: ["y", "d"] outputs: "z" add {} }
    outputs { name: "z" })")));
  fill_inputs(*session, 3);
  session->run();
  start_counting_allocations();
  session->run();
  EXPECT_EQ(stop_counting_allocations(), 0);
}

TEST_F(SessionTest, InputsAndWeightsMayBeOutputs) {
  const auto session = session_for(plan_for(graph_from_text(R"(
    inputs { name: "x" dtype: F32 dims: [{size: 3}] }
    weights { name: "w" dtype: F32 dims: [3] numbers { values: [1, 2, 3] } }
    nodes { name: "sum" inputs: ["x", "w"] outputs: "y" add {} }
    outputs { name: "y" } outputs { name: "x" } outputs { name: "w" })")));
  fill(session->input(0), 4);
  session->run();
  for (int64_t i = 0; i < 3; ++i) {
    const float x = load_f32(session->output(1).data, i, DType::kF32);
    EXPECT_EQ(x, load_f32(session->input(0).data, i, DType::kF32));
    EXPECT_EQ(load_f32(session->output(2).data, i, DType::kF32), static_cast<float>(i + 1));
    EXPECT_EQ(load_f32(session->output(0).data, i, DType::kF32), x + static_cast<float>(i + 1));
  }
}

TEST_F(SessionTest, EmptyTensorsRun) {
  const auto session = session_for(plan_for(shipped("digits.txtpb"), {{"batch", 0}}));
  session->run();
  EXPECT_EQ(session->output(0).count(), 0);
}

TEST_F(SessionTest, MemoryThatIsNotThereIsRefusedWithTheLargestTensors) {
  const auto plan = plan_for(graph_from_text(R"(
    inputs { name: "x" dtype: F32 dims: [{size: 1099511627776}, {size: 16}] }
    nodes { name: "soft" inputs: "x" outputs: "y" softmax {} }
    outputs { name: "y" })"));
  const auto session = Session::create(plan);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.error().kind, ErrorKind::kDevice);
  EXPECT_NE(session.error().message.find("\"x\" 70368744177664 bytes"), std::string::npos)
      << session.error().message;
}

}  // namespace
}  // namespace me::testing
