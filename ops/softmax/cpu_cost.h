// What the CPU's softmax kernels expect to take, so that the plan can choose between them.
#pragma once

#include <algorithm>

#include "ops/base/op.h"
#include "ops/cpu/rows.h"

namespace me {

// The longest row that softmax_cpu_rows takes in one go: its exponentials, 64 KiB, stay in a core's
// L2 cache. Rows with a column stride are taken 16 at a time and share that space.
constexpr int64_t kSoftmaxCachedRow = 16384;
constexpr int64_t kSoftmaxCachedColumns = kSoftmaxCachedRow / 16;

// Nanoseconds of one thread for one logit, its share of memory traffic included, where exp is
// computed once and where the logits are read again and exp is computed again. Measured on Zen at
// 2 GHz; it is their ratio that decides.
constexpr double kOnceNs = 2.0;
constexpr double kTwiceNs = 3.2;

// Waking the threads once, and waiting for them.
constexpr double kBarrierUs = 5;

// Threads past the number of rows idle.
inline double softmax_rows_cost_us(const Problem& p) {
  const Rows rows = rows_of(p.inputs[0]);
  const double busy = std::max<double>(1, std::min<double>(p.device.threads, rows.count));
  const int64_t cached = rows.stride == 1 ? kSoftmaxCachedRow : kSoftmaxCachedColumns;
  const double ns = rows.length <= cached ? kOnceNs : kTwiceNs;
  return static_cast<double>(rows.count) * rows.length * ns / busy / 1e3 + kBarrierUs;
}

// Every thread is busy, but each logit is met twice, and there are three barriers.
inline double softmax_split_cost_us(const Problem& p) {
  const Rows rows = rows_of(p.inputs[0]);
  const double busy = std::max(1, p.device.threads);
  return static_cast<double>(rows.count) * rows.length * kTwiceNs / busy / 1e3 + 3 * kBarrierUs;
}

}  // namespace me
