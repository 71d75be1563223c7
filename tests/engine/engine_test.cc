#include "tests/engine/engine_test.h"

#include <stdexcept>

#include "engine/model/loader.h"
#include "ops/registry.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {

void KernelsTest::SetUp() {
  for (const LeftOutKernel& left : left_out_kernels()) {
    if (left.name.find(name_of(test_backend())) == std::string_view::npos) continue;
    GTEST_SKIP() << left.name << " is left out of this build, which lacks " << left.needs;
  }
}

std::shared_ptr<const Graph> graph_from_text(const std::string& text) {
  const TempFolder folder;
  const std::string file =
      folder.write("model.txtpb", "format_version: 1 graph {\n" + text + "\n}\n");
  auto graph = load_model(file);
  if (!graph.ok()) throw std::runtime_error(graph.error().to_string());
  return std::make_shared<const Graph>(std::move(graph).value());
}

std::shared_ptr<const Plan> plan_for(std::shared_ptr<const Graph> graph, const Symbols& symbols,
                                     int threads) {
  PlanOptions options;
  options.symbols = symbols;
  options.device = test_device()->info();
  options.device.threads = threads;
  auto plan = Plan::make(std::move(graph), options);
  if (!plan.ok()) throw std::runtime_error(plan.error().to_string());
  return plan.value();
}

const Step& step_of(const Plan& plan, std::string_view name) {
  for (const Step& step : plan.steps()) {
    if (plan.graph().nodes[static_cast<size_t>(step.node)].name == name) return step;
  }
  throw std::runtime_error("no node " + std::string(name));
}

}  // namespace me::testing
