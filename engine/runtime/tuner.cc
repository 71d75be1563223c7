#include "engine/runtime/tuner.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/runtime/kernel_timer.h"
#include "engine/runtime/provenance.h"
#include "ops/registry.h"

namespace me {
namespace {

constexpr double kWorthTwoLooks = 1.25;

struct Candidate {
  const KernelEntry* kernel;
  std::string config;
};

std::vector<Candidate> candidates_for(const Problem& problem) {
  std::vector<Candidate> candidates;
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->op != problem.op->name || kernel->backend != problem.device.backend) continue;
    if (kernel->baseline || !kernel->supports(problem).ok) continue;
    if (kernel->configs == nullptr) {
      candidates.push_back({kernel, ""});
      continue;
    }
    for (KernelConfig& config : kernel->configs(problem)) {
      candidates.push_back({kernel, std::move(config.name)});
    }
  }
  return candidates;
}

Result<TunedKernel> search(const std::shared_ptr<Device>& device, const Problem& problem,
                           const std::vector<Candidate>& candidates) {
  ME_ASSIGN_OR_RETURN(ProblemBuffers buffers, ProblemBuffers::create(device, problem));
  buffers.randomize_inputs();
  std::vector<std::unique_ptr<TimedKernel>> timed;
  std::vector<double> first_us;
  for (const Candidate& candidate : candidates) {
    ME_ASSIGN_OR_RETURN(auto kernel,
                        TimedKernel::create(*candidate.kernel, buffers, candidate.config));
    kernel->record();
    first_us.push_back(kernel->time_us());
    timed.push_back(std::move(kernel));
  }
  const double least = *std::ranges::min_element(first_us);
  std::vector<TimedKernel*> turns;
  std::vector<size_t> of_turn;
  for (size_t i = 0; i < timed.size(); ++i) {
    if (first_us[i] > kWorthTwoLooks * least) continue;
    turns.push_back(timed[i].get());
    of_turn.push_back(i);
  }
  const std::vector<Statistics> times = time_in_turns(turns);
  const auto best = std::ranges::min_element(times, {}, &Statistics::median);
  const Candidate& winner = candidates[of_turn[static_cast<size_t>(best - times.begin())]];
  return TunedKernel{std::string(winner.kernel->name), winner.config, best->median};
}

}  // namespace

std::string tuning_machine(const DeviceInfo& device) {
  const auto facts = provenance(device);
  const auto fact = [&facts](const std::string& name) {
    const auto it = facts.find(name);
    return it == facts.end() ? std::string("none") : it->second;
  };
  return fmt::format("{}; {}; driver {}; engine {}", to_string(device), fact("cpu"), fact("driver"),
                     fact("commit"));
}

Result<TunedPlan> make_tuned_plan(const std::shared_ptr<const Graph>& graph, PlanOptions options,
                                  const std::shared_ptr<TuningCache>& cache) {
  options.tuning = cache;
  TunedPlan tuned;
  ME_ASSIGN_OR_RETURN(tuned.plan, Plan::make(graph, options));
  std::shared_ptr<Device> device;
  for (const Step& step : tuned.plan->steps()) {
    const Node& node = graph->nodes[static_cast<size_t>(step.node)];
    if (step.kernel == nullptr || options.kernels.contains(node.name)) continue;
    Problem problem = step.problem;
    problem.config.clear();
    const std::string key = tuning_key(problem, node.fields);
    if (cache->find(key)) continue;
    const std::vector<Candidate> candidates = candidates_for(problem);
    if (candidates.size() < 2) continue;
    if (device == nullptr) device = Device::open(options.device);
    ME_ASSIGN_OR_RETURN(TunedKernel best, search(device, problem, candidates));
    cache->put(key, std::move(best));
    ++tuned.measured;
  }
  if (tuned.measured > 0) {
    ME_ASSIGN_OR_RETURN(tuned.plan, Plan::make(graph, options));
  }
  return tuned;
}

}  // namespace me
