#include "bench/arms.h"

#include <exception>

#include "bench/bench_case.h"
#include "engine/runtime/kernel_timer.h"
#include "ops/registry.h"

namespace me::bench {
namespace {

const KernelEntry* plans_choice(const Problem& problem) {
  const KernelEntry* best = nullptr;
  double best_us = 0;
  for (const KernelEntry* kernel : me::kernels()) {
    if (kernel->op != problem.op->name || kernel->backend != problem.device.backend) continue;
    if (kernel->baseline) continue;
    const Support support = kernel->supports(problem);
    if (!support.ok || (best != nullptr && support.cost_us >= best_us)) continue;
    best = kernel;
    best_us = support.cost_us;
  }
  return best;
}

// The arm's kernel, ready to be timed; null where the arm's state says why not.
std::unique_ptr<TimedKernel> make_ready(const BenchCase& bench_case, ProblemBuffers& buffers,
                                        Arm& arm) {
  const auto stop = [&arm](Arm::State state, std::string note) {
    arm.state = state;
    arm.note = std::move(note);
    return nullptr;
  };
  Problem problem = buffers.problem();
  problem.config = arm.config;
  const Support support = arm.kernel->supports(problem);
  if (!support.ok) return stop(Arm::State::kRefused, support.reason);
  arm.note = support.reason;
  auto timed = TimedKernel::create(*arm.kernel, buffers, arm.config);
  if (!timed.ok()) return stop(Arm::State::kFailed, timed.error().to_string());
  buffers.poison_outputs();
  timed.value()->run_once();
  const CheckReport report = bench_case.check(buffers.output(0).data());
  arm.max_rel_error = report.max_rel_error;
  if (!report.passed) {
    if (!arm.kernel->baseline) return stop(Arm::State::kWrong, report.message);
    arm.note += "; outside the bound: " + report.message;
  }
  return std::move(timed).value();
}

void measure_arms(const std::shared_ptr<Device>& device, const CaseSpec& spec, DType dtype,
                  CacheState caches, CaseResult& result) {
  const BenchCase bench_case(spec, dtype, device->info());
  const Problem& problem = bench_case.problem();
  result.work = problem.op->work(problem);
  auto buffers = ProblemBuffers::create(device, problem, caches);
  if (!buffers.ok()) throw std::runtime_error(buffers.error().to_string());
  result.warm = buffers.value().warm();
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    buffers.value().set_input(i, bench_case.input(i));
  }
  const KernelEntry* choice = plans_choice(problem);
  std::vector<std::unique_ptr<TimedKernel>> timed;
  std::vector<TimedKernel*> turns;
  for (Arm& arm : result.arms) {
    arm.chosen = arm.kernel == choice && arm.config.empty();
    timed.push_back(make_ready(bench_case, buffers.value(), arm));
    if (timed.back() != nullptr) turns.push_back(timed.back().get());
  }
  if (turns.empty()) return;
  const std::vector<Statistics> times = time_in_turns(turns);
  size_t next = 0;
  for (size_t i = 0; i < timed.size(); ++i) {
    if (timed[i] != nullptr) result.arms[i].time_us = times[next++];
  }
}

}  // namespace

CaseResult measure(const std::shared_ptr<Device>& device, const CaseSpec& spec, DType dtype,
                   std::vector<Arm> arms, CacheState caches) {
  CaseResult result;
  result.arms = std::move(arms);
  try {
    measure_arms(device, spec, dtype, caches, result);
  } catch (const std::exception& e) {
    for (Arm& arm : result.arms) {
      if (arm.state != Arm::State::kTimed) continue;
      arm.state = Arm::State::kFailed;
      arm.note = e.what();
    }
  }
  return result;
}

}  // namespace me::bench
