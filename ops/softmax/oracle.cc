#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/softmax/softmax.h"

namespace me {
namespace {

constexpr double kRoundoff = 0x1p-24;

// What a kernel may do wrong, in units of kRoundoff. With t = max - x:
//
//   numerator e   3t + 4  t is rounded, then perhaps scaled by log2 e, itself rounded: an argument
//                         off by 3t changes exp by a factor of e^3t. exp errs by 2 ulp, which is 4.
//   sum l                 The weighted mean of its terms' errors, Σ y·(3t + 4); the additions, in
//                         any order (accumulation_error of N); and the merges of partial sums. A
//                         rescale errs by 5, exp and product (its argument's error is inside 3t,
//                         since max - x splits into parts of one sign), and partial sums hold
//                         at least kPartial logits.
//   quotient      2       the reciprocal and the product with it
//
// They multiply, so the sum of all is the exponent of the bound.
constexpr double kArgument = 3;
constexpr double kExp = 4;
constexpr double kRescale = 5;
constexpr double kQuotient = 2;
constexpr double kPartial = 256;

// Logits further below the maximum than this give less than half the smallest subnormal, where the
// error of any answer that rounds to it is free.
constexpr double kVanished = 200;

void softmax_row(const double* x, int64_t n, double* y, double* bound) {
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < n; ++i) max = x[i] > max || std::isnan(x[i]) ? x[i] : max;
  // A NaN, an infinite maximum or nothing but -inf makes each difference or the sum NaN.
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - max);
  double mean_error = 0;
  for (int64_t i = 0; i < n; ++i) {
    y[i] /= sum;
    if (y[i] > 0) mean_error += y[i] * (kArgument * (max - x[i]) + kExp) * kRoundoff;
  }
  const double length = static_cast<double>(n);
  const double sum_error = mean_error + accumulation_error(length) +
                           kRescale * accumulation_error(std::ceil(length / kPartial));
  for (int64_t i = 0; i < n; ++i) {
    const double t = std::min(max - x[i], kVanished);
    bound[i] = y[i] * std::expm1((kArgument * t + kExp + kQuotient) * kRoundoff + sum_error);
  }
}

}  // namespace

std::vector<OracleOutput> softmax_oracle(const Problem&, std::span<const F64Tensor> inputs) {
  const F64Tensor& x = inputs[0];
  OracleOutput y{{x.shape, std::vector<double>(x.data.size())}, std::vector<double>(x.data.size())};
  const int64_t n = x.shape.back();
  for (size_t at = 0; at < x.data.size(); at += static_cast<size_t>(n)) {
    softmax_row(&x.data[at], n, &y.value.data[at], &y.bound[at]);
  }
  return {y};
}

}  // namespace me
