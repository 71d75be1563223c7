// The vector loops of softmax on the CPU, over dense fp32. Each runs on the best instruction set
// of the machine. Sums are fp32, lane by lane: their order depends on n alone.
//
// A row with a NaN or +inf needs no case of its own: the sum of its exponentials is NaN whatever
// maximum is used, and a sum that is NaN makes every quotient NaN.
#pragma once

#include <cstdint>

#include "ops/softmax/normalizer.h"

namespace me {

// y = softmax(x), n >= 1. `y` may be `x`.
void row_softmax(const float* x, int64_t n, float* y);

// y[i] = exp(x[i] - max)·factor, max >= x[i]. `y` may be `x`.
void row_exp_scaled(const float* x, int64_t n, float max, float factor, float* y);

// The normaliser of n >= 1 logits: (-inf, 0) where all are -inf, so that merging it changes
// nothing.
Normalizer row_normalizer(const float* x, int64_t n);

}  // namespace me
