#include "engine/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "ops/registry.h"

namespace me {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

// The largest power of two, up to kArenaAlignment, that divides `address`.
int64_t alignment_of(int64_t address) {
  const auto bits = static_cast<uint64_t>(address | kArenaAlignment);
  return int64_t{1} << std::countr_zero(bits);
}

Error at_node(const Graph& graph, const Node& node, ErrorKind kind, std::string message) {
  Error error{kind, std::move(message)};
  error.file = graph.file;
  error.node = node.name;
  return error;
}

}  // namespace

// Decides for every value whether it has memory of its own or is a view.
Status Plan::place_values(const std::vector<TensorType>& types) {
  const Graph& graph = *graph_;
  std::vector<bool> is_output(graph.values.size(), false);
  for (int v : graph.outputs) is_output[at(v)] = true;

  for (size_t v = 0; v < graph.values.size(); ++v) {
    PlannedValue value;
    value.desc = dense(types[v].dtype, types[v].shape);
    if (graph.values[v].kind == ValueKind::kWeight) {
      value.weight = static_cast<int>(v);
      value.desc.constant = true;
      // Where they lie in the file; a session for another device copies them to aligned places.
      value.desc.alignment_bytes = device_.backend == Backend::kCpu
                                       ? alignment_of(static_cast<int64_t>(
                                             std::bit_cast<intptr_t>(graph.values[v].data.data())))
                                       : kArenaAlignment;
    } else {
      value.desc.alignment_bytes = kArenaAlignment;
    }
    values_.push_back(value);
  }

  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    Step step;
    step.node = static_cast<int>(n);
    if (node.op->view != nullptr) {
      const int from = node.inputs[0];
      const int to = node.outputs[0];
      const PlannedValue& input = values_[at(from)];
      const auto placed = node.op->view(*node.attrs, input.desc, types[at(to)].shape);
      if (placed && !is_output[at(to)]) {
        PlannedValue& view = values_[at(to)];
        view = input;
        view.view_of = from;
        view.desc = placed->desc;
        view.desc.constant = input.desc.constant;
        view.offset_bytes = input.offset_bytes + placed->offset * size_of(input.desc.dtype);
        view.desc.alignment_bytes =
            std::min(input.desc.alignment_bytes, alignment_of(view.offset_bytes));
        step.reason = "a view: strides " + to_string(view.desc.strides);
      } else {
        step.reason = placed ? "a copy: the graph's output needs memory of its own"
                             : "a copy: strides cannot express it";
      }
    }
    for (int v : node.inputs) step.problem.inputs.push_back(values_[at(v)].desc);
    for (int v : node.outputs) step.problem.outputs.push_back(values_[at(v)].desc);
    step.problem.op = node.op;
    step.problem.attrs = node.attrs.get();
    step.problem.device = device_;
    step.work = node.op->work(step.problem);
    if (values_[at(node.outputs[0])].view_of >= 0) step.work = {};
    steps_.push_back(std::move(step));
  }
  return Ok{};
}

Status Plan::choose_kernels(const PlanOptions& options) {
  for (const auto& forced : options.kernels) {
    const auto named = [&](const Node& node) { return node.name == forced.first; };
    if (std::none_of(graph_->nodes.begin(), graph_->nodes.end(), named)) {
      Error error = invalid(fmt::format("the model has no node {}", in_quotes(forced.first)));
      error.file = graph_->file;
      error.field = "--kernel";
      return error;
    }
  }
  for (Step& step : steps_) {
    const Node& node = graph_->nodes[at(step.node)];
    if (values_[at(node.outputs[0])].view_of >= 0) continue;
    const auto forced = options.kernels.find(node.name);
    std::optional<TunedKernel> tuned;
    if (options.tuning != nullptr && forced == options.kernels.end()) {
      tuned = options.tuning->find(tuning_key(step.problem, node.fields));
    }
    const KernelEntry* best = nullptr;
    Support best_support;
    std::vector<std::pair<const KernelEntry*, Support>> candidates;
    for (const KernelEntry* kernel : kernels()) {
      if (kernel->op != node.op->name || kernel->backend != device_.backend) continue;
      const bool named = forced != options.kernels.end() && forced->second == kernel->name;
      if (kernel->baseline && !named) {
        candidates.emplace_back(kernel, Support::no("a baseline, taken only by name"));
        continue;
      }
      Support support = kernel->supports(step.problem);
      const bool wanted = forced == options.kernels.end() || named;
      if (support.ok && wanted && (best == nullptr || support.cost_us < best_support.cost_us)) {
        best = kernel;
        best_support = support;
      }
      candidates.emplace_back(kernel, std::move(support));
    }
    if (best == nullptr) {
      std::string why;
      for (const auto& [kernel, support] : candidates) {
        const bool refused = !support.ok;
        why +=
            fmt::format("; {}: {}", kernel->name, refused ? support.reason : "not the one named");
      }
      for (const LeftOutKernel& left : left_out_kernels()) {
        if (left.op == node.op->name) {
          why +=
              fmt::format("; {} is left out of this build, which lacks {}", left.name, left.needs);
        }
      }
      if (forced != options.kernels.end()) {
        Error error =
            at_node(*graph_, node, ErrorKind::kInvalid,
                    fmt::format("kernel {} cannot be used{}", in_quotes(forced->second), why));
        error.field = "--kernel";
        return error;
      }
      return at_node(
          *graph_, node, ErrorKind::kDevice,
          fmt::format("no kernel for {} on {}{}", node.op->name, name_of(device_.backend), why));
    }
    if (tuned) {
      // What was measured may have gone from the registry, or the configuration from the kernel.
      Problem problem = step.problem;
      problem.config = tuned->config;
      for (const auto& [kernel, support] : candidates) {
        if (kernel->name != tuned->kernel || kernel->baseline) continue;
        Support of_config = kernel->supports(problem);
        if (!of_config.ok) continue;
        best = kernel;
        best_support = {true, tuned->time_us, "measured, " + of_config.reason};
        step.problem.config = tuned->config;
      }
    }
    step.kernel = best;
    step.cost_us = best_support.cost_us;
    // Why a view is a copy matters more than that its one kernel can do it.
    if (step.reason.empty()) {
      step.reason =
          forced != options.kernels.end() ? "asked for by name" : std::move(best_support.reason);
    }
    step.workspace_bytes = workspace_of(*best, step.problem);
    for (auto& [kernel, support] : candidates) {
      if (kernel == best) continue;
      step.rejected.push_back(
          {std::string(kernel->name),
           support.ok ? fmt::format("estimated {:.3g} us against {:.3g} us ({})", support.cost_us,
                                    best_support.cost_us, support.reason)
                      : (kernel->baseline ? "" : "refuses: ") + support.reason});
    }
  }
  return Ok{};
}

// Liveness: an input lives always, since a later run may reuse its values; any other value from its
// node to its last reader, through views too; an output to the end; a workspace during its node.
Status Plan::lay_out_memory() {
  const Graph& graph = *graph_;
  const int end = static_cast<int>(graph.nodes.size());
  std::vector<int> root(values_.size());
  std::vector<int> last(values_.size());
  for (size_t v = 0; v < values_.size(); ++v) {
    root[v] = static_cast<int>(v);
    last[v] = graph.values[v].kind == ValueKind::kInput ? end : graph.values[v].producer;
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (int v : graph.nodes[n].outputs) {
      if (values_[at(v)].view_of >= 0) root[at(v)] = root[at(values_[at(v)].view_of)];
    }
    for (int v : graph.nodes[n].inputs) {
      int& reader = last[at(root[at(v)])];
      reader = std::max(reader, static_cast<int>(n));
    }
  }
  for (int v : graph.outputs) last[at(root[at(v)])] = end;

  std::vector<ArenaBlock> blocks;
  std::vector<int> block_of(values_.size(), -1);
  for (size_t v = 0; v < values_.size(); ++v) {
    if (values_[v].weight >= 0 || values_[v].view_of >= 0) continue;
    block_of[v] = static_cast<int>(blocks.size());
    const int first = graph.values[v].kind == ValueKind::kInput ? -1 : graph.values[v].producer;
    blocks.push_back({values_[v].desc.bytes(), first, last[v]});
  }
  const size_t first_workspace = blocks.size();
  for (const Step& step : steps_) blocks.push_back({step.workspace_bytes, step.node, step.node});

  auto layout = plan_arena(blocks);
  if (!layout) {
    Error error{ErrorKind::kDevice, "the tensors of one run need more than 2^62 bytes"};
    error.file = graph.file;
    return error;
  }
  arena_ = std::move(*layout);
  for (size_t v = 0; v < values_.size(); ++v) {
    const int block = block_of[at(root[v])];
    if (block >= 0) values_[v].offset_bytes += arena_.offsets[at(block)];
  }
  for (size_t s = 0; s < steps_.size(); ++s) {
    steps_[s].workspace_offset = arena_.offsets[first_workspace + s];
  }
  return Ok{};
}

Result<std::shared_ptr<const Plan>> Plan::make(std::shared_ptr<const Graph> graph,
                                               const PlanOptions& options) {
  std::shared_ptr<Plan> plan(new Plan);
  plan->graph_ = std::move(graph);
  plan->device_ = options.device;
  plan->symbols_ = options.symbols;
  ME_ASSIGN_OR_RETURN(auto types, infer_types(*plan->graph_, options.symbols));
  for (size_t v = 0; v < types.size(); ++v) {
    if (!checked_count(types[v].shape)) {
      Error error =
          invalid(fmt::format("the shape of {} is {}, expected every dimension known",
                              in_quotes(plan->graph_->values[v].name), to_string(types[v].shape)));
      error.file = plan->graph_->file;
      return error;
    }
  }
  ME_RETURN_IF_ERROR(plan->place_values(types));
  ME_RETURN_IF_ERROR(plan->choose_kernels(options));
  ME_RETURN_IF_ERROR(plan->lay_out_memory());
  return std::shared_ptr<const Plan>(std::move(plan));
}

int64_t Plan::weight_bytes() const {
  int64_t bytes = 0;
  for (const Value& value : graph_->values) bytes += static_cast<int64_t>(value.data.size());
  return bytes;
}

}  // namespace me
