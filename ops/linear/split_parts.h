// Where the blocks of a cluster that each sum a part of K put their parts: in the ring of stages,
// over its oldest two, once every block has read those. Host and device share it.
#pragma once

#include <cstdint>

#include "ops/base/host_device.h"

namespace me {

constexpr int kPartStages = 2;  // that parts take at most

// First step along K of part `rank` of 2^split_bits; the parts' lengths differ by one at most.
ME_HD constexpr int first_step_of(int k_steps, int rank, int split_bits) {
  return static_cast<int>(int64_t{k_steps} * rank >> split_bits);
}

// The first stage that parts lie over, the same in every block: the one that a step after the
// longest part would take; or the next to it, where that is the ring's last.
constexpr int parts_stage(int k_steps, int split_bits, int stages) {
  const int longest = static_cast<int>(((int64_t{k_steps} - 1) >> split_bits) + 1);
  const int oldest = longest % stages;
  return oldest + kPartStages <= stages ? oldest : 0;
}

// In front of which of a block's `steps` no product reads those stages any more, while that of the
// step before may still run; `steps`: behind the last of them.
ME_HD constexpr int step_parts_may_come(int steps, int stages) {
  constexpr int kMost = 3;  // steps left, enough for the cluster's barrier to be passed meanwhile
  // The parts' stages, one that the wrap skips, one by which parts differ, and the step before.
  const int left = stages - (kPartStages + 3);
  const int early = left < 0 ? 0 : left < kMost ? left : kMost;
  return steps > early ? steps - early : 0;
}

}  // namespace me
