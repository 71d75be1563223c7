#include <fmt/format.h>

#include <array>
#include <iterator>

#include "engine/plan/plan.h"

namespace me {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

// Three significant digits and a unit: "1.05 MFLOP", "12.3 KB".
std::string scaled(double amount, std::string_view unit) {
  constexpr std::array kPrefixes{"", "K", "M", "G", "T", "P"};
  size_t i = 0;
  while (amount >= 1000 && i + 1 < kPrefixes.size()) {
    amount /= 1000;
    ++i;
  }
  return fmt::format("{:.3g} {}{}", amount, kPrefixes[i], unit);
}

// "x f32[2, 3]", with the strides where it is not dense.
std::string describe(const std::string& name, const TensorDesc& desc) {
  std::string out = fmt::format("{} {}", in_quotes(name), to_string(desc.type()));
  if (!desc.is_dense()) out += " strides " + to_string(desc.strides);
  return out;
}

}  // namespace

std::string Plan::explain() const {
  const Graph& graph = *graph_;
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "model   {}", in_quotes(graph.file));
  if (!graph.name.empty()) fmt::format_to(out, ", graph {}", in_quotes(graph.name));
  fmt::format_to(out, "\ndevice  {}\n", to_string(device_));
  for (const auto& [symbol, size] : symbols_)
    fmt::format_to(out, "symbol  {} = {}\n", symbol, size);
  for (int v : graph.inputs) {
    fmt::format_to(out, "input   {}\n", describe(graph.values[at(v)].name, values_[at(v)].desc));
  }
  for (int v : graph.outputs) {
    fmt::format_to(out, "output  {}\n", describe(graph.values[at(v)].name, values_[at(v)].desc));
  }

  Work total;
  for (const Step& step : steps_) {
    const Node& node = graph.nodes[at(step.node)];
    fmt::format_to(out, "\nnode {}: {}\n", in_quotes(node.name), node.op->name);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      fmt::format_to(out, "  reads      {}\n",
                     describe(graph.values[at(node.inputs[i])].name, step.problem.inputs[i]));
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      fmt::format_to(
          out, "  makes      {}\n",
          describe(graph.values[at(node.outputs[i])].name, values_[at(node.outputs[i])].desc));
    }
    if (step.kernel == nullptr) {
      fmt::format_to(out, "  runs       nothing: {}\n", step.reason);
      continue;
    }
    fmt::format_to(out, "  runs       {}: {}\n", step.kernel->name, step.reason);
    for (const RejectedKernel& rejected : step.rejected) {
      fmt::format_to(out, "  not        {}: {}\n", rejected.name, rejected.reason);
    }
    fmt::format_to(out, "  work       {}, {} moved at least\n", scaled(step.work.flops, "FLOP"),
                   scaled(step.work.bytes, "B"));
    if (step.workspace_bytes > 0) {
      fmt::format_to(out, "  workspace  {} bytes at {}\n", step.workspace_bytes,
                     step.workspace_offset);
    }
    total.flops += step.work.flops;
    total.bytes += step.work.bytes;
  }

  fmt::format_to(out, "\nwork    {}, {} moved at least\n", scaled(total.flops, "FLOP"),
                 scaled(total.bytes, "B"));
  fmt::format_to(out, "memory  arena {} bytes; without sharing {}; alive at once at most {}\n",
                 arena_.bytes, arena_.sum_bytes, arena_.lower_bound_bytes);
  fmt::format_to(out, "weights {} bytes\n", weight_bytes());
  for (size_t v = 0; v < values_.size(); ++v) {
    const PlannedValue& value = values_[v];
    if (value.weight >= 0 || value.view_of >= 0) continue;
    fmt::format_to(out, "  {:>12} +{:<12} {}\n", value.offset_bytes, value.desc.bytes(),
                   in_quotes(graph.values[v].name));
  }
  return text;
}

}  // namespace me
