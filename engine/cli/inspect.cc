// engine inspect: the plan, and why it is as it is.
#include <fmt/format.h>

#include <cstdio>

#include "engine/cli/common.h"
#include "engine/model/loader.h"

namespace me::cli {
namespace {

struct InspectArgs {
  PlanArgs plan;
  bool json = false;
};

size_t at(int index) { return static_cast<size_t>(index); }

Json value_json(const Plan& plan, int index) {
  const Value& value = plan.graph().values[at(index)];
  const PlannedValue& planned = plan.values()[at(index)];
  Json out = {{"name", value.name},
              {"dtype", name_of(planned.desc.dtype)},
              {"shape", to_json(planned.desc.shape)},
              {"strides", to_json(planned.desc.strides)},
              {"bytes", planned.desc.bytes()},
              {"memory", planned.weight >= 0 ? "weight" : "arena"},
              {"offset_bytes", planned.offset_bytes}};
  if (planned.view_of >= 0) out["view_of"] = plan.graph().values[at(planned.view_of)].name;
  return out;
}

Json plan_json(const Plan& plan) {
  const Graph& graph = plan.graph();
  Json out = {{"model", graph.file},
              {"graph", graph.name},
              {"device", name_of(plan.device().backend)},
              {"threads", plan.device().threads},
              {"symbols", plan.symbols()},
              {"inputs", Json::array()},
              {"outputs", Json::array()},
              {"values", Json::array()},
              {"nodes", Json::array()}};
  for (int v : graph.inputs) out["inputs"].push_back(graph.values[at(v)].name);
  for (int v : graph.outputs) out["outputs"].push_back(graph.values[at(v)].name);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    out["values"].push_back(value_json(plan, static_cast<int>(v)));
  }
  for (const Step& step : plan.steps()) {
    const Node& node = graph.nodes[at(step.node)];
    Json inputs = Json::array();
    Json outputs = Json::array();
    for (int v : node.inputs) inputs.push_back(graph.values[at(v)].name);
    for (int v : node.outputs) outputs.push_back(graph.values[at(v)].name);
    Json rejected = Json::array();
    for (const RejectedKernel& r : step.rejected) {
      rejected.push_back({{"kernel", r.name}, {"reason", r.reason}});
    }
    out["nodes"].push_back({{"name", node.name},
                            {"op", node.op->name},
                            {"inputs", inputs},
                            {"outputs", outputs},
                            {"kernel", step.kernel == nullptr ? Json() : Json(step.kernel->name)},
                            {"reason", step.reason},
                            {"rejected", rejected},
                            {"flops", step.work.flops},
                            {"bytes", step.work.bytes},
                            {"workspace_bytes", step.workspace_bytes},
                            {"workspace_offset_bytes", step.workspace_offset}});
  }
  out["memory"] = {{"arena_bytes", plan.arena().bytes},
                   {"sum_bytes", plan.arena().sum_bytes},
                   {"lower_bound_bytes", plan.arena().lower_bound_bytes},
                   {"weight_bytes", plan.weight_bytes()}};
  return out;
}

int inspect(const InspectArgs& args) {
  auto graph = load_model(args.plan.model);
  if (!graph.ok()) return fail(graph.error());
  const auto shared = std::make_shared<const Graph>(std::move(graph).value());
  std::string notice;
  const auto options = plan_options(args.plan, *shared, {}, notice);
  if (!options.ok()) return fail(options.error());
  const auto plan = make_plan(args.plan, shared, options.value());
  if (!plan.ok()) return fail(plan.error());
  if (!notice.empty()) notify(notice);
  if (args.json) {
    print_json(plan_json(*plan.value()));
  } else {
    fmt::print("{}", plan.value()->explain());
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, int& status) {
  auto args = std::make_shared<InspectArgs>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show the plan: shapes, FLOPs, bytes, memory, each node's kernel and why");
  command->footer("Example: engine inspect models/digits.pb --dim batch=400");
  add_plan_options(*command, args->plan);
  command->add_flag("--json", args->json, "Print the plan as JSON");
  command->callback([args, &status] { status = inspect(*args); });
}

}  // namespace me::cli
