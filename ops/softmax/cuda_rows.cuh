// What the GPU's softmax kernels share: exponentials, and normalisers of what a thread holds and of
// what a team holds.
//
// A row with a NaN or +inf needs no case of its own: maxima drop NaN, but the sum of the
// exponentials is NaN whatever maximum is used, and a NaN sum makes every quotient NaN.
#pragma once

#include "ops/cuda/ptx.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/softmax/normalizer.h"

namespace me {

// exp(d), d <= 0 the difference of a logit and a maximum. The difference is taken before it is
// scaled: at ±3e38 it overflows to -inf, which gives 0, and nothing exceeds 1.
__device__ inline float exp_of_difference(float d) {
  constexpr float kLog2E = 1.4426950408889634f;
  return exp2_approx(d * kLog2E);
}

// The normaliser of `to` and n more logits. One rescale for all of them.
template <int n>
__device__ inline Normalizer absorb(const Normalizer& to, const float (&x)[n]) {
  float max = to.max;
#pragma unroll
  for (int i = 0; i < n; ++i) max = fmaxf(max, x[i]);
  // Where nothing is above -inf, logits taken from 0 count for nothing and a NaN still shows.
  const float shift = max == -std::numeric_limits<float>::infinity() ? 0.0f : max;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < n; ++i) sum += exp_of_difference(x[i] - shift);
  return {max, to.sum * rescale_factor(to.max, max) + sum};
}

// The normaliser of all that the threads of a team hold, for each of them.
template <class AnyTeam>
__device__ inline Normalizer merge_team(AnyTeam& team, const Normalizer& own) {
  const float max = team.template reduce<MaxOf>(own.max);
  return {max, team.template reduce<SumOf>(own.sum * rescale_factor(own.max, max))};
}

// x = softmax of x where `total` is its row's normaliser.
template <int n>
__device__ inline void normalize(const Normalizer& total, float (&x)[n]) {
  const float factor = 1.0f / total.sum;
#pragma unroll
  for (int i = 0; i < n; ++i) x[i] = exp_of_difference(x[i] - total.max) * factor;
}

}  // namespace me
