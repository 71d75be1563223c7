// engine compare: the plan's kernels beside baselines and the FP64 oracle.
#include "engine/runtime/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/cli/common.h"
#include "engine/cli/tensors.h"
#include "engine/model/loader.h"
#include "engine/runtime/provenance.h"

namespace me::cli {
namespace {

struct CompareArgs {
  PlanArgs plan;
  std::vector<std::string> inputs;
  std::vector<std::string> with;
  uint64_t seed = 0;
  bool json = false;
};

size_t at(int index) { return static_cast<size_t>(index); }

// "12.3 TFLOP/s" where the node is arithmetic, else "3.1 TB/s".
std::string rate_of(const NodeComparison& node, const Problem& problem, double us) {
  if (us <= 0) return "";
  if (problem.op->name == "linear" || problem.op->name == "attention") {
    return fmt::format("{:.4g} TFLOP/s", node.work.flops / us / 1e6);
  }
  return fmt::format("{:.4g} GB/s", node.work.bytes / us / 1e3);
}

// How an error stands to its bound.
std::string verdict(const KernelResult& result) {
  if (result.check.passed) return fmt::format("{:.2f} of its bound", result.check.worst_ratio);
  return fmt::format("OVER its bound at {} elements: {}", result.check.failures,
                     result.check.message);
}

void print_node(const Plan& plan, const NodeComparison& node) {
  const Step& step = plan.steps()[at(node.node)];
  const Node& graph_node = plan.graph().nodes[at(node.node)];
  if (node.kernels.empty()) {
    fmt::print("\nnode {}: {}, {}\n", in_quotes(graph_node.name), graph_node.op->name, step.reason);
    return;
  }
  std::string shapes;
  for (const TensorDesc& t : step.problem.inputs) shapes += to_string(t.type()) + " ";
  fmt::print("\nnode {}: {} {}-> {}\n", in_quotes(graph_node.name), graph_node.op->name, shapes,
             to_string(step.problem.outputs[0].type()));
  const auto& own = node.kernels[0].time_us;
  for (const KernelResult& result : node.kernels) {
    if (!result.refusal.empty()) {
      fmt::print("  {:<30} refuses: {}\n", result.kernel, result.refusal);
      continue;
    }
    std::string line = fmt::format("  {:<30}", result.kernel);
    if (result.time_us) {
      const double us = result.time_us->median;
      line += fmt::format(" {:>9.2f} us ±{:.1f} %  {:<16}", us, 100 * result.time_us->spread,
                          rate_of(node, step.problem, us));
      if (&result == &node.kernels[0] && node.ceiling_fraction) {
        line += fmt::format(" {:>5.1f} % of the ceiling", 100 * *node.ceiling_fraction);
      } else if (own) {
        line += fmt::format(" ours is {:.2f} times as fast", us / own->median);
      }
    } else {
      line += " not timed";
    }
    fmt::print("{}\n  {:<30} error {}\n", line, "", verdict(result));
  }
  const auto arm = [](const char* name, const ArmError& error) {
    fmt::print("  {:<30} added {:.2e}, inherited {:.2e}, together {:.2e} of the largest value",
               name, error.added, error.inherited, error.total);
    if (error.nan > 0) fmt::print(", {} NaN", error.nan);
    if (error.infinite > 0) fmt::print(", {} infinite", error.infinite);
    fmt::print("\n");
  };
  arm("error up to here, ours", node.custom);
  if (std::ranges::any_of(node.kernels, &KernelResult::baseline)) {
    arm("error up to here, baselines", node.baseline);
  }
  fmt::print("  bound: {}{}\n", node.bound,
             node.warm_cache ? "; timed with operands that may be in the cache" : "");
}

void print_report(const Plan& plan, const Comparison& comparison) {
  fmt::print("model    {} on {}\n", plan.graph().file, to_string(plan.device()));
  fmt::print("ceilings copy {:.0f} GB/s", comparison.copy_bytes_per_s / 1e9);
  for (const auto& [dtype, flops] : comparison.matrix_flops_per_s) {
    fmt::print(", {} products {:.1f} TFLOP/s", name_of(dtype), flops / 1e12);
  }
  fmt::print(" (measured now)\n");
  for (const NodeComparison& node : comparison.nodes) print_node(plan, node);
  if (comparison.custom_us) {
    fmt::print("\nthe whole model, one replay: {:.2f} us ±{:.1f} %", comparison.custom_us->median,
               100 * comparison.custom_us->spread);
    if (comparison.baseline_us) {
      fmt::print("; with baselines {:.2f} us ±{:.1f} %: ours is {:.2f} times as fast",
                 comparison.baseline_us->median, 100 * comparison.baseline_us->spread,
                 comparison.baseline_us->median / comparison.custom_us->median);
    }
    fmt::print("\n");
  }
  if (comparison.first_failure < 0) {
    fmt::print("OK: every kernel of the plan is within its bound\n");
  } else {
    fmt::print("FAILED: the first node over its bound is {}\n",
               in_quotes(plan.graph().nodes[at(comparison.first_failure)].name));
  }
}

Json to_json(const Statistics& s) {
  return {{"median", s.median},
          {"min", s.min},
          {"max", s.max},
          {"spread", s.spread},
          {"samples", s.count}};
}

// JSON has no infinity.
Json number(double x) { return std::isfinite(x) ? Json(x) : Json(fmt::format("{}", x)); }

Json to_json(const ArmError& e) {
  return {{"added", number(e.added)},
          {"inherited", number(e.inherited)},
          {"total", number(e.total)},
          {"nan", e.nan},
          {"infinite", e.infinite}};
}

Json node_json(const Plan& plan, const NodeComparison& node) {
  const Step& step = plan.steps()[at(node.node)];
  Json kernels = Json::array();
  for (const KernelResult& result : node.kernels) {
    Json kernel = {{"kernel", result.kernel}, {"baseline", result.baseline}};
    if (!result.refusal.empty()) {
      kernel["refusal"] = result.refusal;
    } else {
      kernel["passed"] = result.check.passed;
      kernel["error_over_bound"] = number(result.check.worst_ratio);
      kernel["failures"] = result.check.failures;
      kernel["max_abs_error"] = number(result.check.max_abs_error);
      kernel["message"] = result.check.message;
      if (result.time_us) kernel["time_us"] = to_json(*result.time_us);
    }
    kernels.push_back(std::move(kernel));
  }
  Json inputs = Json::array();
  for (const TensorDesc& t : step.problem.inputs) inputs.push_back(to_string(t.type()));
  Json out = {{"name", plan.graph().nodes[at(node.node)].name},
              {"op", step.problem.op->name},
              {"inputs", inputs},
              {"output", to_string(step.problem.outputs[0].type())},
              {"kernels", kernels},
              {"custom", to_json(node.custom)},
              {"baseline", to_json(node.baseline)},
              {"bound", node.bound},
              {"flops", node.work.flops},
              {"bytes", node.work.bytes},
              {"warm_cache", node.warm_cache}};
  if (node.ceiling_fraction) out["ceiling_fraction"] = *node.ceiling_fraction;
  return out;
}

void print_report_json(const Plan& plan, const Comparison& comparison) {
  Json out = {{"model", plan.graph().file},
              {"provenance", provenance(plan.device())},
              {"copy_bytes_per_s", comparison.copy_bytes_per_s},
              {"matrix_flops_per_s", Json::object()},
              {"nodes", Json::array()},
              {"passed", comparison.first_failure < 0}};
  for (const auto& [dtype, flops] : comparison.matrix_flops_per_s) {
    out["matrix_flops_per_s"][std::string(name_of(dtype))] = flops;
  }
  for (const NodeComparison& node : comparison.nodes) out["nodes"].push_back(node_json(plan, node));
  if (comparison.custom_us) out["model_us"] = to_json(*comparison.custom_us);
  if (comparison.baseline_us) out["model_baseline_us"] = to_json(*comparison.baseline_us);
  if (comparison.first_failure >= 0) {
    out["first_failure"] = plan.graph().nodes[at(comparison.first_failure)].name;
  }
  print_json(out);
}

// Whether every kernel of the plan is within its bound.
Result<bool> run_compare(const CompareArgs& args) {
  ME_ASSIGN_OR_RETURN(Graph loaded, load_model(args.plan.model));
  const auto graph = std::make_shared<const Graph>(std::move(loaded));
  ME_ASSIGN_OR_RETURN(const auto arrays, read_inputs(*graph, args.inputs));
  std::string notice;
  ME_ASSIGN_OR_RETURN(const PlanOptions options,
                      plan_options(args.plan, *graph, shapes_of(arrays), notice));
  ME_ASSIGN_OR_RETURN(const auto plan, make_plan(args.plan, graph, options));
  const CompareOptions compare_options{args.with};
  ME_RETURN_IF_ERROR(check_options(compare_options, *plan));
  if (!notice.empty()) notify(notice);

  std::vector<std::vector<std::byte>> storage;
  std::vector<TensorView> inputs;
  for (int v : graph->inputs) {
    const TensorDesc& desc = plan->values()[at(v)].desc;
    storage.emplace_back(static_cast<size_t>(desc.bytes()));
    inputs.push_back(view_of(desc, storage.back().data()));
  }
  ME_RETURN_IF_ERROR(fill_inputs(*graph, inputs, arrays, args.seed));
  ME_ASSIGN_OR_RETURN(const Comparison comparison, compare(plan, inputs, compare_options));
  if (const std::string warning = clock_warning(plan->device()); !warning.empty()) notify(warning);
  (args.json ? print_report_json : print_report)(*plan, comparison);
  return comparison.first_failure < 0;
}

}  // namespace

void add_compare(CLI::App& app, int& status) {
  auto args = std::make_shared<CompareArgs>();
  CLI::App* command = app.add_subcommand(
      "compare", "Each node's kernel beside cuBLASLt and the FP64 oracle: times and errors");
  command->footer(
      "Examples:\n"
      "  engine compare models/chain.pb\n"
      "  engine compare models/digits.pb --input image=models/digits/test_images.npy --json\n"
      "Baselines are measured where they take a node: cuBLASLt with its heuristic's first pick "
      "(..._first)\n"
      "and with the best of all that it offers. An error is judged on the inputs that the kernel "
      "really\n"
      "got; what earlier nodes left in them is shown as inherited. Exits with 1 where a kernel of "
      "the\n"
      "plan exceeds its bound.");
  add_plan_options(*command, args->plan);
  add_input_options(*command, args->inputs, args->seed);
  add_repeatable(*command, "--with", args->with,
                 "Measure this kernel too, wherever it takes a node")
      ->type_name("KERNEL");
  command->add_flag("--json", args->json, "Print the result as JSON, with provenance");
  command->callback([args, &status] {
    const Result<bool> passed = run_compare(*args);
    status = !passed.ok() ? fail(passed.error()) : passed.value() ? 0 : 1;
  });
}

}  // namespace me::cli
