// A plan with memory: fixed buffers, prepared kernels, one captured run to replay.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/plan/plan.h"
#include "ops/device/device.h"

namespace me {

// What making a session cost, in microseconds of host time.
struct StartupCost {
  double device_us = 0;   // opening the device: on CUDA its context
  double memory_us = 0;   // allocating, and copying the weights
  double modules_us = 0;  // preparing this project's kernels: their modules are loaded
  double tuning_us = 0;   // preparing baselines, which measure their algorithms
  double warm_up_us = 0;  // one run, kernel by kernel
  double capture_us = 0;  // recording the run, instantiating and uploading the graph
};

// Not for use from several threads at once; several sessions may share one plan.
class Session {
 public:
  // Opens the plan's device, allocates the arena, prepares every kernel, runs once (on poison, so
  // that nothing is cold) and captures the run. kDevice where the memory is not to be had. Throws
  // what a failing device throws (see Device).
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<const Plan> plan);

  const Plan& plan() const { return *plan_; }
  Device& device() { return *device_; }
  const StartupCost& startup() const { return startup_; }

  // The host's buffer of a graph's input or output, by its position among them: dense, valid as
  // long as the session. Inputs keep their content from run to run; outputs hold the last run's.
  TensorView input(size_t position) const;
  TensorView output(size_t position) const;
  std::vector<TensorView> inputs() const;  // of all inputs, in order

  // Inputs to the device, every kernel once, in order, outputs to the host; waits for them. New
  // values in the inputs need no new capture. Nothing is allocated by the engine.
  void run();

  // The parts of run(), for who measures them. Each enqueues and does not wait (a CPU has finished
  // when it returns; its copies do nothing).
  void copy_inputs();
  void launch();        // the captured run
  void launch_eager();  // the same kernels one by one; the same bits
  void copy_outputs();
  void wait() { device_->wait(); }

 private:
  // A graph's input or output as the host sees it.
  struct HostBuffer {
    int value = -1;
    Memory memory;  // empty where the host sees the device's memory
  };

  Session() = default;
  Status allocate();
  Status prepare();
  std::byte* address_of(int value) const;
  TensorView view_of_host(const HostBuffer& buffer) const;

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<Device> device_;
  Memory arena_;
  Memory weights_;                       // empty where the device reads the host's
  std::vector<int64_t> weight_offsets_;  // in weights_, by value
  std::vector<HostBuffer> inputs_;
  std::vector<HostBuffer> outputs_;
  std::vector<std::unique_ptr<PreparedOp>> ops_;
  std::unique_ptr<Replay> replay_;
  StartupCost startup_;
};

}  // namespace me
