// What the GPU's softmax kernels expect to take, so that the plan can choose between them.
#pragma once

#include <algorithm>

#include "ops/base/op.h"
#include "ops/base/rows.h"

namespace me {

// Of an H200: a launch with nothing to do, each further one that waits for it, and what memory
// yields to one multiprocessor alone and to all of them.
constexpr double kLaunchUs = 2.2;
constexpr double kNextLaunchUs = 1.2;
constexpr double kAloneBytesPerUs = 50e3;
constexpr double kTogetherBytesPerUs = 3.5e6;

// `bytes` through as many multiprocessors as there are `blocks` to share them.
inline double traffic_us(const Problem& p, double bytes, double blocks) {
  const double busy = std::clamp<double>(blocks, 1, std::max(1, p.device.multiprocessors));
  return bytes / std::min(kTogetherBytesPerUs, busy * kAloneBytesPerUs);
}

// Rows are shared out in groups of `together`.
inline double softmax_rows_cost_us(const Problem& p, int64_t together) {
  const Rows rows = rows_of(p.inputs[0]);
  const auto blocks = static_cast<double>((rows.count + together - 1) / together);
  return kLaunchUs + traffic_us(p, p.op->work(p).bytes, blocks);
}

// Every multiprocessor is busy, but the logits are read twice and the launches wait for each other.
inline double softmax_split_cost_us(const Problem& p, int64_t chunks, int launches) {
  return kLaunchUs + (launches - 1) * kNextLaunchUs +
         traffic_us(p, 1.5 * p.op->work(p).bytes, static_cast<double>(chunks));
}

}  // namespace me
