// What the CPU's softmax kernels expect to take, so that the plan can choose between them.
#pragma once

#include <algorithm>

#include "ops/base/op.h"
#include "ops/base/rows.h"
#include "ops/cpu/panel.h"

namespace me {

// What softmax_cpu_rows computes in one go, in fp32: 128 KiB, which stay in a core's L2 cache.
constexpr int64_t kSoftmaxBuffer = 32768;

// The longest row for that. Rows with a column stride come together and share the space.
inline int64_t softmax_cached_row(const TensorDesc& x) {
  return x.strides.back() == 1 ? kSoftmaxBuffer : kSoftmaxBuffer / panel_rows(x.dtype);
}

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
  const double ns = rows.length <= softmax_cached_row(p.inputs[0]) ? kOnceNs : kTwiceNs;
  return static_cast<double>(rows.count) * rows.length * ns / busy / 1e3 + kBarrierUs;
}

// Every thread is busy, but each logit is met twice, and there are three barriers.
inline double softmax_split_cost_us(const Problem& p) {
  const Rows rows = rows_of(p.inputs[0]);
  const double busy = std::max(1, p.device.threads);
  return static_cast<double>(rows.count) * rows.length * kTwiceNs / busy / 1e3 + 3 * kBarrierUs;
}

}  // namespace me
