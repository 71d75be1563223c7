// The vector loops of softmax on the CPU, over dense fp32. Each runs on the best instruction set
// of the machine. Sums are fp32, lane by lane: their order depends on n alone.
//
// A row with a NaN or +inf needs no case of its own: the sum of its exponentials is NaN whatever
// maximum is used, and a sum that is NaN makes every quotient NaN.
#pragma once

#include <cstdint>

#include "ops/softmax/normalizer.h"

namespace me {

// The largest of n >= 1 values; unspecified where one is NaN.
float row_max(const float* x, int64_t n);

// e[i] = exp(x[i] - max); returns their sum. `e` may be `x`. max >= x[i], or x holds a NaN.
float row_exp(const float* x, int64_t n, float max, float* e);

// y[i] = e[i]·factor. `y` may be `e`.
void row_scale(const float* e, int64_t n, float factor, float* y);

// y[i] = exp(x[i] - max)·factor. `y` may be `x`.
void row_exp_scaled(const float* x, int64_t n, float max, float factor, float* y);

// The normaliser of n >= 1 logits: (-inf, 0) where all are -inf, so that merging it changes
// nothing.
Normalizer row_normalizer(const float* x, int64_t n);

}  // namespace me
