// The kernels of one case: checked, then timed in turns.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/cases.h"
#include "engine/runtime/kernel_timer.h"
#include "engine/runtime/statistics.h"
#include "ops/base/check.h"
#include "ops/base/kernel.h"
#include "ops/device/device.h"

namespace me::bench {

struct Arm {
  enum class State : uint8_t {
    kTimed,
    kRefused,  // the kernel does not take the problem
    kWrong,    // the oracle has something else
    kFailed,   // it could not be prepared or run
  };
  const KernelEntry* kernel = nullptr;
  std::string config = {};  // one of the kernel's; empty: its own choice
  State state = State::kTimed;
  std::string note = {};  // what the kernel says of itself; what is wrong where it was not timed
  bool chosen = false;    // a plan would take it
  double max_rel_error = 0;
  Statistics time_us = {};  // of one launch
};

struct CaseResult {
  Work work;
  bool warm = false;  // operands may have been in the cache
  std::vector<Arm> arms;
};

// Measures these arms (kernels and configurations), all of the case's op and the device's backend.
// A baseline outside the oracle's bound is timed all the same, and its note says so. Frees all
// memory again.
CaseResult measure(const std::shared_ptr<Device>& device, const CaseSpec& spec, DType dtype,
                   std::vector<Arm> arms, CacheState caches = CacheState::kCold);

}  // namespace me::bench
