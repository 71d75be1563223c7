#include "engine/runtime/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/runtime/ceilings.h"
#include "engine/runtime/kernel_timer.h"
#include "engine/runtime/session.h"
#include "ops/registry.h"

namespace me {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kReplaySamples = 51;

size_t at(int index) { return static_cast<size_t>(index); }

// The values of one arm on the host: the bytes of every value that has memory of its own.
class ArmValues {
 public:
  explicit ArmValues(const Plan& plan) : plan_(plan), bytes_(plan.values().size()) {}

  int root(int value) const {
    while (plan_.values()[at(value)].view_of >= 0) value = plan_.values()[at(value)].view_of;
    return value;
  }

  TensorView view(int value) const {
    const PlannedValue& planned = plan_.values()[at(value)];
    const int base = root(value);
    const std::byte* data = planned.weight >= 0
                                ? plan_.graph().values[at(planned.weight)].data.data()
                                : bytes_[at(base)].data();
    const int64_t offset = planned.offset_bytes - plan_.values()[at(base)].offset_bytes;
    return view_of(planned.desc, const_cast<std::byte*>(data) + offset);
  }

  void set(int value, std::vector<std::byte> bytes) { bytes_[at(value)] = std::move(bytes); }
  void free(int value) { std::vector<std::byte>().swap(bytes_[at(value)]); }
  const std::vector<std::byte>& bytes(int value) const { return bytes_[at(value)]; }

 private:
  const Plan& plan_;
  std::vector<std::vector<std::byte>> bytes_;
};

// The last node that reads each value; values read by none die at their producer.
std::vector<int> last_readers(const Graph& graph) {
  std::vector<int> last(graph.values.size(), -1);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (int v : graph.nodes[n].inputs) last[at(v)] = static_cast<int>(n);
    for (int v : graph.nodes[n].outputs) last[at(v)] = static_cast<int>(n);
  }
  return last;
}

// The largest finite magnitude.
double magnitude(const F64Tensor& t) {
  double most = 0;
  for (double x : t.data) {
    if (std::isfinite(x)) most = std::max(most, std::abs(x));
  }
  return most;
}

// max |a - b| over `scale`; infinite where one is not finite and the other differs from it.
double distance(const F64Tensor& a, const F64Tensor& b, double scale) {
  double most = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double x = a.data[i];
    const double y = b.data[i];
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) return kInfinity;
    most = std::max(most, std::abs(x - y));
  }
  return scale > 0 ? most / scale : most;
}

// What the bound of a check is made of.
std::string bound_of(const Problem& problem) {
  const DType dtype = problem.outputs[0].dtype;
  const std::string rounding =
      fmt::format("one rounding to {} (2^{})", name_of(dtype), std::ilogb(unit_roundoff(dtype)));
  const int64_t terms = problem.op->sum_length(problem);
  if (terms == 0) return rounding;
  return fmt::format("fp32 sums of {} terms ({:.1e} of the terms' magnitudes), {}", terms,
                     accumulation_error(static_cast<double>(terms)), rounding);
}

class Comparer {
 public:
  Comparer(std::shared_ptr<const Plan> plan, const CompareOptions& options)
      : plan_(std::move(plan)),
        options_(options),
        device_(Device::open(plan_->device())),
        exact_(plan_->values().size()),
        custom_(*plan_),
        baseline_(*plan_) {}

  Result<Comparison> run(const std::vector<TensorView>& inputs) {
    ME_RETURN_IF_ERROR(measure_ceilings());
    const Graph& graph = plan_->graph();
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      const auto* data = static_cast<const std::byte*>(inputs[i].data);
      for (ArmValues* arm : {&custom_, &baseline_}) {
        arm->set(graph.inputs[i], {data, data + inputs[i].bytes()});
      }
      exact_[at(graph.inputs[i])] = to_f64(inputs[i]);
    }
    const std::vector<int> last = last_readers(graph);
    std::vector<int> arm_last = last;  // of memory: through views
    for (size_t v = 0; v < last.size(); ++v) {
      int& root_last = arm_last[at(custom_.root(static_cast<int>(v)))];
      root_last = std::max(root_last, last[v]);
    }
    for (const Step& step : plan_->steps()) {
      ME_RETURN_IF_ERROR(compare_node(step));
      for (size_t v = 0; v < last.size(); ++v) {
        if (last[v] == step.node) exact_[v] = {};
        if (arm_last[v] == step.node) {
          custom_.free(static_cast<int>(v));
          baseline_.free(static_cast<int>(v));
        }
      }
    }
    ME_RETURN_IF_ERROR(time_model(inputs));
    return std::move(result_);
  }

 private:
  Status measure_ceilings() {
    ME_ASSIGN_OR_RETURN(result_.copy_bytes_per_s, copy_ceiling(device_));
    for (const Step& step : plan_->steps()) {
      const bool products =
          step.problem.op->name == "linear" || step.problem.op->name == "attention";
      const DType dtype = step.problem.inputs[0].dtype;
      if (!products || result_.matrix_flops_per_s.contains(dtype)) continue;
      if (const auto flops = matrix_ceiling(device_, dtype)) {
        result_.matrix_flops_per_s[dtype] = *flops;
      }
    }
    return Ok{};
  }

  std::vector<F64Tensor> inputs_of(const Node& node, const ArmValues& arm) const {
    std::vector<F64Tensor> inputs;
    for (int v : node.inputs) inputs.push_back(to_f64(arm.view(v)));
    return inputs;
  }

  const F64Tensor& exact(int value) {
    F64Tensor& tensor = exact_[at(value)];
    const Value& v = plan_->graph().values[at(value)];
    if (v.kind == ValueKind::kWeight && tensor.data.empty()) tensor = to_f64(custom_.view(value));
    return tensor;
  }

  Status compare_node(const Step& step) {
    const Node& node = plan_->graph().nodes[at(step.node)];
    const Problem& problem = step.problem;
    const int out = node.outputs[0];
    NodeComparison comparison;
    comparison.node = step.node;
    comparison.work = step.work;
    comparison.bound = bound_of(problem);

    std::vector<F64Tensor> exact_inputs;
    for (int v : node.inputs) exact_inputs.push_back(exact(v));
    exact_[at(out)] = problem.op->oracle(problem, exact_inputs).at(0).value;
    if (step.kernel != nullptr) {
      ME_RETURN_IF_ERROR(run_kernels(step, node, comparison));
    }
    result_.nodes.push_back(std::move(comparison));
    return Ok{};
  }

  // What the oracle makes of an arm's inputs, and how far that and the arm are from the exact
  // value.
  void judge(const Node& node, const OracleOutput& want, const ArmValues& arm,
             ArmError& error) const {
    const int out = node.outputs[0];
    const F64Tensor got = to_f64(arm.view(out));
    const F64Tensor& exact = exact_[at(out)];
    const double scale = magnitude(exact);
    error.added = distance(got, want.value, scale);
    error.inherited = distance(want.value, exact, scale);
    error.total = distance(got, exact, scale);
    for (double x : got.data) {
      error.nan += std::isnan(x) ? 1 : 0;
      error.infinite += std::isinf(x) ? 1 : 0;
    }
  }

  void set_inputs(ProblemBuffers& buffers, const Node& node, const ArmValues& arm) const {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      buffers.set_input(i, arm.view(node.inputs[i]).data);
    }
  }

  // One launch on what the buffers hold: the output, and its check.
  CheckReport run_once(TimedKernel& timed, ProblemBuffers& buffers, const OracleOutput& want,
                       std::vector<std::byte>& bytes) const {
    buffers.poison_outputs();
    timed.run_once();
    bytes = buffers.output(0);
    return check_output(view_of(buffers.problem().outputs[0], bytes.data()), want);
  }

  Status run_kernels(const Step& step, const Node& node, NodeComparison& comparison) {
    const Problem& problem = step.problem;
    const int out = node.outputs[0];
    auto created = ProblemBuffers::create(device_, problem);
    if (!created.ok()) return at_node(node, created.error());
    ProblemBuffers& buffers = created.value();
    comparison.warm_cache = buffers.warm();

    std::vector<const KernelEntry*> entries{step.kernel};
    for (const KernelEntry* kernel : kernels()) {
      const bool asked = std::ranges::find(options_.with, kernel->name) != options_.with.end();
      if (kernel->op == problem.op->name && kernel->backend == problem.device.backend &&
          kernel != step.kernel && (kernel->baseline || asked)) {
        entries.push_back(kernel);
      }
    }

    const auto wants = [&](const ArmValues& arm) {
      const std::vector<F64Tensor> inputs = inputs_of(node, arm);
      return problem.op->oracle(problem, inputs).at(0);
    };
    const OracleOutput custom_want = wants(custom_);
    const bool same_inputs = std::ranges::all_of(node.inputs, [&](int v) {
      return custom_.bytes(custom_.root(v)) == baseline_.bytes(baseline_.root(v));
    });
    const OracleOutput baseline_want = same_inputs ? custom_want : wants(baseline_);

    std::vector<std::unique_ptr<TimedKernel>> timed(entries.size());
    std::vector<TimedKernel*> turns;
    std::vector<size_t> turn_of;
    std::vector<std::byte> custom_out;
    std::vector<std::byte> baseline_out;
    // The plan's kernel and those asked for on the plan's values, baselines on theirs, which come
    // last: of two that take the node the registry has the better one first.
    for (const bool baselines : {false, true}) {
      set_inputs(buffers, node, baselines ? baseline_ : custom_);
      for (size_t i = 0; i < entries.size(); ++i) {
        const KernelEntry& entry = *entries[i];
        if ((entry.baseline && i > 0) != baselines) continue;
        KernelResult result;
        result.kernel = entry.name;
        result.baseline = entry.baseline;
        Problem as_run = problem;
        if (i > 0) as_run.config.clear();  // it is the plan's kernel's
        const Support support = entry.supports(as_run);
        auto prepared = support.ok ? TimedKernel::create(entry, buffers, as_run.config)
                                   : Result<std::unique_ptr<TimedKernel>>(invalid(support.reason));
        if (!prepared.ok()) {
          if (i == 0) return at_node(node, prepared.error());
          result.refusal = prepared.error().message;
          comparison.kernels.push_back(std::move(result));
          continue;
        }
        timed[i] = std::move(prepared).value();
        std::vector<std::byte> bytes;
        result.check = run_once(*timed[i], buffers, baselines ? baseline_want : custom_want, bytes);
        if (i == 0) custom_out = bytes;
        if (baselines && baseline_out.empty()) baseline_out = std::move(bytes);
        if (result.check.passed || entry.baseline) {
          turns.push_back(timed[i].get());
          turn_of.push_back(comparison.kernels.size());
        }
        comparison.kernels.push_back(std::move(result));
      }
    }
    if (baseline_out.empty()) {
      // No baseline takes the node: the plan's kernel, on the baseline arm's values.
      std::vector<std::byte> bytes = custom_out;
      if (!same_inputs) run_once(*timed[0], buffers, baseline_want, bytes);
      baseline_out = std::move(bytes);
    }
    custom_.set(out, std::move(custom_out));
    baseline_.set(out, std::move(baseline_out));
    judge(node, custom_want, custom_, comparison.custom);
    judge(node, baseline_want, baseline_, comparison.baseline);

    const std::vector<Statistics> times = time_in_turns(turns);
    for (size_t i = 0; i < times.size(); ++i) comparison.kernels[turn_of[i]].time_us = times[i];
    if (!comparison.kernels[0].check.passed && result_.first_failure < 0) {
      result_.first_failure = step.node;
    }
    set_ceiling(problem, comparison);
    return Ok{};
  }

  void set_ceiling(const Problem& problem, NodeComparison& comparison) const {
    const auto& time = comparison.kernels[0].time_us;
    if (!time || time->median <= 0 || comparison.warm_cache) return;
    double floor_us = comparison.work.bytes / result_.copy_bytes_per_s * 1e6;
    const auto matrix = result_.matrix_flops_per_s.find(problem.inputs[0].dtype);
    if (matrix != result_.matrix_flops_per_s.end() && problem.op->sum_length(problem) > 0 &&
        (problem.op->name == "linear" || problem.op->name == "attention")) {
      floor_us = std::max(floor_us, comparison.work.flops / matrix->second * 1e6);
    }
    comparison.ceiling_fraction = floor_us / time->median;
  }

  Error at_node(const Node& node, Error error) const {
    error.file = plan_->graph().file;
    error.node = node.name;
    return error;
  }

  // The whole model, as planned and with the first baseline that takes each node.
  Status time_model(const std::vector<TensorView>& inputs) {
    std::vector<std::unique_ptr<Session>> sessions;
    ME_ASSIGN_OR_RETURN(auto custom, Session::create(plan_));
    sessions.push_back(std::move(custom));
    PlanOptions options;
    options.device = plan_->device();
    options.symbols = plan_->symbols();
    for (const NodeComparison& node : result_.nodes) {
      for (const KernelResult& kernel : node.kernels) {
        const std::string& name = plan_->graph().nodes[at(node.node)].name;
        if (kernel.baseline && kernel.refusal.empty() && !options.kernels.contains(name)) {
          options.kernels[name] = kernel.kernel;
        }
      }
    }
    if (!options.kernels.empty()) {
      for (const NodeComparison& node : result_.nodes) {
        const std::string& name = plan_->graph().nodes[at(node.node)].name;
        if (!node.kernels.empty()) options.kernels.emplace(name, node.kernels[0].kernel);
      }
      auto plan = Plan::make(plan_->share_graph(), options);
      if (!plan.ok()) return plan.error();
      ME_ASSIGN_OR_RETURN(auto baseline, Session::create(std::move(plan).value()));
      sessions.push_back(std::move(baseline));
    }
    std::vector<std::vector<double>> samples(sessions.size());
    for (const auto& session : sessions) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const TensorView to = session->input(i);
        std::copy_n(static_cast<const std::byte*>(inputs[i].data), inputs[i].bytes(),
                    static_cast<std::byte*>(to.data));
      }
      session->run();
    }
    for (int i = 0; i < kReplaySamples; ++i) {
      for (size_t s = 0; s < sessions.size(); ++s) {
        Session& session = *sessions[s];
        samples[s].push_back(session.device().time_us([&] { session.launch(); }));
      }
    }
    result_.custom_us = summarize(std::move(samples[0]));
    if (samples.size() > 1) result_.baseline_us = summarize(std::move(samples[1]));
    return Ok{};
  }

  std::shared_ptr<const Plan> plan_;
  const CompareOptions& options_;
  std::shared_ptr<Device> device_;
  std::vector<F64Tensor> exact_;
  ArmValues custom_;
  ArmValues baseline_;
  Comparison result_;
};

}  // namespace

Status check_options(const CompareOptions& options, const Plan& plan) {
  for (const std::string& name : options.with) {
    const KernelEntry* kernel = find_kernel(name);
    if (kernel != nullptr && kernel->backend == plan.device().backend) continue;
    Error error = invalid(fmt::format("found {}, expected a kernel of {}", in_quotes(name),
                                      name_of(plan.device().backend)));
    error.field = "--with";
    return error;
  }
  return Ok{};
}

Result<Comparison> compare(const std::shared_ptr<const Plan>& plan,
                           const std::vector<TensorView>& inputs, const CompareOptions& options) {
  return Comparer(plan, options).run(inputs);
}

}  // namespace me
