#include "engine/runtime/kernel_timer.h"

#include <algorithm>
#include <random>

namespace me {
namespace {

constexpr size_t kMostCopies = 256;
constexpr double kReplayUs = 4000;  // a replay's own start, some microseconds, is lost in it
constexpr double kMostLaunches = 4096;
constexpr double kSettleUs = 100e3;  // of every kernel's replays together

// What a machine's caches hold; on a CPU the last level of a large server chip.
int64_t cache_bytes(const DeviceInfo& device) {
  return device.backend == Backend::kCuda ? device.l2_bytes : int64_t{64} << 20;
}

int64_t span_bytes(const TensorDesc& desc) { return span_of(desc) * size_of(desc.dtype); }

int64_t bytes_of(const Problem& problem) {
  int64_t bytes = 0;
  for (const TensorDesc& t : problem.inputs) bytes += span_bytes(t);
  for (const TensorDesc& t : problem.outputs) bytes += span_bytes(t);
  return bytes;
}

}  // namespace

int64_t span_of(const TensorDesc& desc) {
  int64_t last = 0;
  for (int i = 0; i < desc.shape.rank(); ++i) {
    if (desc.shape[i] == 0) return 0;
    last += (desc.shape[i] - 1) * desc.strides[i];
  }
  return last + 1;
}

Result<ProblemBuffers> ProblemBuffers::create(const std::shared_ptr<Device>& device,
                                              const Problem& problem, CacheState caches) {
  ProblemBuffers buffers;
  buffers.device_ = device;
  buffers.problem_ = problem;
  const int64_t bytes = std::max<int64_t>(1, bytes_of(problem));
  const int64_t cold = 2 * cache_bytes(device->info());
  const int64_t affordable = std::max<int64_t>(1, device->free_bytes() / 2 / bytes);
  const int64_t wanted = caches == CacheState::kWarm ? 1 : cold / bytes + 1;
  const auto copies = std::min({wanted, affordable, static_cast<int64_t>(kMostCopies)});
  buffers.warm_ = caches == CacheState::kWarm || copies < wanted;
  for (int64_t i = 0; i < copies; ++i) {
    Copy copy;
    for (const TensorDesc& t : problem.inputs) {
      ME_ASSIGN_OR_RETURN(Memory memory, Memory::on_device(device, span_bytes(t)));
      copy.inputs.push_back(std::move(memory));
    }
    for (const TensorDesc& t : problem.outputs) {
      ME_ASSIGN_OR_RETURN(Memory memory, Memory::on_device(device, span_bytes(t)));
      copy.outputs.push_back(std::move(memory));
    }
    buffers.copies_.push_back(std::move(copy));
  }
  buffers.poison_outputs();
  return buffers;
}

void ProblemBuffers::set_input(size_t input, const void* bytes) {
  for (const Copy& copy : copies_) {
    device_->upload(copy.inputs.at(input).data(), bytes, copy.inputs.at(input).bytes());
  }
  device_->wait();
}

void ProblemBuffers::randomize_inputs() {
  constexpr int64_t kPeriod = (1 << 16) + 1;  // odd, so that rows differ
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> block(kPeriod);
  for (float& x : block) x = normal(random);
  for (size_t input = 0; input < problem_.inputs.size(); ++input) {
    const TensorDesc& t = problem_.inputs[input];
    std::vector<std::byte> bytes(static_cast<size_t>(span_bytes(t)));
    for (int64_t i = 0; i < span_of(t); ++i) {
      const int64_t at = (i + static_cast<int64_t>(input) * 4099) % kPeriod;
      store_f32(bytes.data(), i, t.dtype, block[static_cast<size_t>(at)]);
    }
    set_input(input, bytes.data());
  }
}

void ProblemBuffers::poison_outputs() {
  for (const Copy& copy : copies_) {
    for (const Memory& memory : copy.outputs) device_->fill(memory.data(), 0xFF, memory.bytes());
  }
  device_->wait();
}

std::vector<std::byte> ProblemBuffers::output(size_t output) const {
  const Memory& memory = copies_.front().outputs.at(output);
  std::vector<std::byte> bytes(static_cast<size_t>(memory.bytes()));
  device_->download(bytes.data(), memory.data(), memory.bytes());
  device_->wait();
  return bytes;
}

Result<std::unique_ptr<TimedKernel>> TimedKernel::create(const KernelEntry& kernel,
                                                         const ProblemBuffers& buffers,
                                                         const std::string& config) {
  Problem problem = buffers.problem();
  problem.config = config;
  auto timed = std::make_unique<TimedKernel>();
  timed->kernel_ = &kernel;
  timed->device_ = buffers.device();
  const int64_t bytes = workspace_of(kernel, problem);
  for (const ProblemBuffers::Copy& copy : buffers.copies_) {
    ME_ASSIGN_OR_RETURN(Memory workspace, Memory::on_device(buffers.device(), bytes));
    buffers.device()->fill(workspace.data(), 0xFF, bytes);
    std::vector<void*> inputs;
    std::vector<void*> outputs;
    for (const Memory& memory : copy.inputs) inputs.push_back(memory.data());
    for (const Memory& memory : copy.outputs) outputs.push_back(memory.data());
    ME_ASSIGN_OR_RETURN(auto op, kernel.prepare(problem, {inputs, outputs, workspace.data()}));
    timed->workspaces_.push_back(std::move(workspace));
    timed->ops_.push_back(std::move(op));
  }
  buffers.device()->wait();
  return timed;
}

void TimedKernel::run_once() {
  ops_.front()->enqueue(device_->stream());
  device_->wait();
}

void TimedKernel::record() {
  const auto replay_of = [this](int launches) {
    launches_ = launches;
    replay_ = device_->capture([this](void* stream) {
      for (int i = 0; i < launches_; ++i)
        ops_[static_cast<size_t>(i) % ops_.size()]->enqueue(stream);
    });
  };
  replay_of(static_cast<int>(ops_.size()));
  time_us();  // the first one warms up
  const double us = std::max(0.1, time_us());
  replay_of(static_cast<int>(std::clamp(kReplayUs / us, 1.0, kMostLaunches)));
}

double TimedKernel::time_us() {
  return device_->time_us([this] { replay_->launch(); }) / launches_;
}

std::vector<Statistics> time_in_turns(const std::vector<TimedKernel*>& kernels) {
  if (kernels.empty()) return {};
  for (TimedKernel* kernel : kernels) kernel->record();
  double spent_us = 0;
  while (spent_us < kSettleUs) {
    for (TimedKernel* kernel : kernels) {
      spent_us += std::max(1.0, kernel->time_us() * kernel->launches());
    }
  }
  std::vector<std::vector<double>> samples(kernels.size());
  for (int i = 0; i < kTimingSamples; ++i) {
    for (size_t k = 0; k < kernels.size(); ++k) samples[k].push_back(kernels[k]->time_us());
  }
  std::vector<Statistics> results;
  for (auto& sample : samples) results.push_back(summarize(std::move(sample)));
  return results;
}

}  // namespace me
