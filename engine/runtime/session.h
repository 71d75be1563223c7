// A plan with memory: fixed buffers, prepared kernels, runs.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/plan/plan.h"

namespace me {

// Not for use from several threads at once; several sessions may share one plan.
class Session {
 public:
  // Allocates the arena and prepares every kernel. kDevice where the memory is not to be had.
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<const Plan> plan);

  const Plan& plan() const { return *plan_; }

  // The buffer of a graph's input or output, by its position among them: dense, valid as long as
  // the session. Inputs keep their content from run to run; outputs hold the last run's.
  TensorView input(size_t position) const;
  TensorView output(size_t position) const;

  // Runs every kernel once, in order. Nothing is allocated by the engine.
  void run();

 private:
  struct FreeArena {
    void operator()(std::byte* p) const;
  };

  Session() = default;
  void* address_of(int value) const;
  TensorView view_of_value(int value) const;

  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<std::byte, FreeArena> arena_;
  std::vector<std::unique_ptr<PreparedOp>> ops_;
};

}  // namespace me
