#include <cmath>

#include "ops/softmax_grad/softmax_grad.h"

namespace me {
namespace {

constexpr double kRoundoff = 0x1p-24;
constexpr double kSubnormalRoundoff = 0x1p-150;

// The dot product errs by one rounding of each product and by the additions, in any order; a
// product below 2^-126 by half a subnormal step instead. Then a subtraction and a product, each
// rounded once.
void softmax_grad_row(const double* y, const double* g, int64_t n, double* dx, double* bound) {
  double dot = 0;
  double magnitude = 0;
  for (int64_t i = 0; i < n; ++i) {
    dot += y[i] * g[i];
    magnitude += std::abs(y[i] * g[i]);
  }
  const double length = static_cast<double>(n);
  const double dot_error =
      (accumulation_error(length) + kRoundoff) * magnitude + length * kSubnormalRoundoff;
  for (int64_t i = 0; i < n; ++i) {
    const double difference = g[i] - dot;
    dx[i] = y[i] * difference;
    const double error = dot_error + kRoundoff * (std::abs(difference) + dot_error);
    bound[i] = std::abs(y[i]) * (error + kRoundoff * (std::abs(difference) + error));
  }
}

}  // namespace

std::vector<OracleOutput> softmax_grad_oracle(const Problem&, std::span<const F64Tensor> inputs) {
  const F64Tensor& y = inputs[0];
  const F64Tensor& g = inputs[1];
  OracleOutput dx{{y.shape, std::vector<double>(y.data.size())},
                  std::vector<double>(y.data.size())};
  const int64_t n = y.shape.back();
  for (size_t at = 0; at < y.data.size(); at += static_cast<size_t>(n)) {
    softmax_grad_row(&y.data[at], &g.data[at], n, &dx.value.data[at], &dx.bound[at]);
  }
  return {dx};
}

}  // namespace me
