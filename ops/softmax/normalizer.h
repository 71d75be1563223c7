// The running normaliser of a set of logits, shared by softmax and attention on host and device:
// the pair (max, sum) with sum = Σ exp(x - max). Sets combine by merge() in any grouping; raw sums
// at different maxima are never added.
#pragma once

#include <cmath>
#include <limits>

#include "ops/base/host_device.h"

namespace me {

struct Normalizer {
  float max = -std::numeric_limits<float>::infinity();  // of the empty set
  float sum = 0.0f;
};

// exp(from - to) for rescaling a sum from one maximum to a larger or equal one. Equal maxima, two
// infinities of the same sign included, need no rescaling.
ME_HD inline float rescale_factor(float from, float to) {
  return from == to ? 1.0f : std::exp(from - to);
}

// The normaliser of the one logit x. +inf and NaN give a NaN sum, which every merge keeps: a row
// that holds one is NaN throughout. -inf counts for nothing.
ME_HD inline Normalizer normalizer_of(float x) {
  return {x, x == -std::numeric_limits<float>::infinity() ? 0.0f : x - x + 1.0f};
}

// The normaliser of the union. Empty with empty is empty.
ME_HD inline Normalizer merge(const Normalizer& a, const Normalizer& b) {
  const float max = b.max > a.max ? b.max : a.max;
  return {max, a.sum * rescale_factor(a.max, max) + b.sum * rescale_factor(b.max, max)};
}

}  // namespace me
