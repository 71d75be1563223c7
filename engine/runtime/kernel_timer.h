// How long kernels take: prepared several times over different memory, so that a launch does not
// find its operands in the cache, and replayed in turns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/statistics.h"
#include "ops/base/kernel.h"
#include "ops/device/device.h"

namespace me {

// Elements from the first to the last one of a strided tensor.
int64_t span_of(const TensorDesc& desc);

// What a launch finds in the cache.
enum class CacheState : uint8_t {
  kCold,  // nothing of its operands, as far as memory allows
  kWarm,  // what the launch before left of the same operands
};

// Several copies of a problem's inputs and outputs on a device, visited in turn.
class ProblemBuffers {
 public:
  // As many copies as it takes for twice the cache to pass between two visits to one of them, where
  // memory and a sensible number allow it; one where caches are to be warm. The outputs hold NaN.
  // kDevice where not even one copy fits.
  static Result<ProblemBuffers> create(const std::shared_ptr<Device>& device,
                                       const Problem& problem,
                                       CacheState caches = CacheState::kCold);

  // `bytes` is the input from its first element to its last.
  void set_input(size_t input, const void* bytes);
  // Normal values into every input, a block of them again and again: data decides how much power a
  // product takes.
  void randomize_inputs();
  // Fills every output with NaN.
  void poison_outputs();
  // The output of copy 0, from its first element to its last.
  std::vector<std::byte> output(size_t output) const;

  const Problem& problem() const { return problem_; }
  const std::shared_ptr<Device>& device() const { return device_; }
  size_t copies() const { return copies_.size(); }
  // Whether a launch may find operands in the cache all the same.
  bool warm() const { return warm_; }

 private:
  friend class TimedKernel;
  struct Copy {
    std::vector<Memory> inputs;
    std::vector<Memory> outputs;
  };

  std::shared_ptr<Device> device_;
  Problem problem_;
  std::vector<Copy> copies_;
  bool warm_ = false;
};

// A kernel prepared over all copies, each with a workspace of its own.
class TimedKernel {
 public:
  // Requires that the kernel supports the problem in this configuration (empty: its own choice).
  // The buffers must outlive the result.
  static Result<std::unique_ptr<TimedKernel>> create(const KernelEntry& kernel,
                                                     const ProblemBuffers& buffers,
                                                     const std::string& config = "");

  const KernelEntry& kernel() const { return *kernel_; }
  // One launch over copy 0; waits for it.
  void run_once();
  // Records a replay of as many launches as take about four milliseconds, over the copies in turn.
  void record();
  // Device time of one launch, in microseconds: the mean over one replay. Requires record().
  double time_us();
  int launches() const { return launches_; }  // in a replay

 private:
  const KernelEntry* kernel_ = nullptr;
  std::shared_ptr<Device> device_;
  std::vector<Memory> workspaces_;
  std::vector<std::unique_ptr<PreparedOp>> ops_;
  std::unique_ptr<Replay> replay_;
  int launches_ = 0;
};

// Device time of one launch of each kernel, in microseconds. The kernels' replays take turns
// (A B A B); each sample is the mean over a replay, and there are kSamples of them for each, after
// enough turns for the clocks to settle. The kernels must be on one device.
constexpr int kTimingSamples = 21;
std::vector<Statistics> time_in_turns(const std::vector<TimedKernel*>& kernels);

}  // namespace me
