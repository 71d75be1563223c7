#include "engine/runtime/ceilings.h"

#include <algorithm>

#include "engine/runtime/kernel_timer.h"
#include "ops/registry.h"

namespace me {
namespace {

// `attrs` has to outlive the result.
Problem problem_of(const DeviceInfo& device, const OpDef& op, const Attrs& attrs,
                   const std::vector<TensorDesc>& inputs, const TensorDesc& output) {
  Problem problem;
  problem.op = &op;
  problem.attrs = &attrs;
  problem.device = device;
  problem.inputs = inputs;
  problem.outputs = {output};
  for (TensorDesc& t : problem.inputs) t.alignment_bytes = kWorkspaceAlignment;
  problem.outputs[0].alignment_bytes = kWorkspaceAlignment;
  return problem;
}

// The fastest kernel's time in microseconds.
std::optional<double> best_time_us(const ProblemBuffers& buffers) {
  std::vector<std::unique_ptr<TimedKernel>> timed;
  std::vector<TimedKernel*> turns;
  for (const KernelEntry* kernel : kernels()) {
    const Problem& problem = buffers.problem();
    if (kernel->op != problem.op->name || kernel->backend != problem.device.backend) continue;
    if (!kernel->supports(problem).ok) continue;
    auto created = TimedKernel::create(*kernel, buffers);
    if (!created.ok()) continue;
    timed.push_back(std::move(created).value());
    turns.push_back(timed.back().get());
  }
  if (turns.empty()) return std::nullopt;
  double best = 0;
  for (const Statistics& time : time_in_turns(turns)) {
    if (best == 0 || time.median < best) best = time.median;
  }
  return best;
}

}  // namespace

Result<double> copy_ceiling(const std::shared_ptr<Device>& device) {
  constexpr int64_t kElements = int64_t{1} << 27;  // 512 MiB of fp32
  const OpDef* op = find_op("transpose");
  ME_ASSIGN_OR_RETURN(const auto attrs, op->parse({{"permutation", std::vector<int64_t>{0}}}));
  const TensorDesc t = dense(DType::kF32, {kElements});
  const Problem problem = problem_of(device->info(), *op, *attrs, {t}, t);
  ME_ASSIGN_OR_RETURN(ProblemBuffers buffers, ProblemBuffers::create(device, problem));
  buffers.randomize_inputs();
  const auto us = best_time_us(buffers);
  if (!us) return Error{ErrorKind::kDevice, "no copy kernel for this device"};
  return static_cast<double>(2 * t.bytes()) / (*us * 1e-6);
}

std::optional<double> matrix_ceiling(const std::shared_ptr<Device>& device, DType dtype) {
  if (device->info().backend == Backend::kCpu) return std::nullopt;
  const int64_t side = dtype == DType::kF32 ? 4096 : 8192;
  const OpDef* op = find_op("linear");
  const auto attrs = op->parse({{"weight_layout", std::string("NK")}});
  if (!attrs.ok()) return std::nullopt;
  const TensorDesc t = dense(dtype, {side, side});
  const Problem problem = problem_of(device->info(), *op, *attrs.value(), {t, t}, t);
  auto buffers = ProblemBuffers::create(device, problem);
  if (!buffers.ok()) return std::nullopt;
  buffers.value().randomize_inputs();
  const auto us = best_time_us(buffers.value());
  if (!us) return std::nullopt;
  return 2.0 * static_cast<double>(side * side * side) / (*us * 1e-6);
}

}  // namespace me
