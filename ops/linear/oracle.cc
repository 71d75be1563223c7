#include <algorithm>
#include <cmath>

#include "ops/linear/linear.h"

namespace me {

// The bound: each of the K products is rounded and passes through at most K - 1 additions, so the
// sum errs by accumulation_error(K)·Σ|x·w|; adding the bias rounds once more. ReLU does not widen
// an error, and cuts off the part of it below zero. Where TF32 is allowed each factor may have been
// rounded to 11 bits first. A row with infinities has no error: its sums
// are infinite or NaN in fp32 as they are here.
std::vector<OracleOutput> linear_oracle(const Problem& problem, std::span<const F64Tensor> inputs) {
  const LinearSizes s = linear_sizes(problem);
  const auto& attrs = attrs_as<LinearAttrs>(*problem.attrs);
  const bool nk = attrs.weight_layout == WeightLayout::kNK;
  const double* x = inputs[0].data.data();
  const double* w = inputs[1].data.data();
  const double rounded = may_use_tf32(problem) ? 0x1p-10 + 0x1p-22 : 0;  // of two factors
  const double accumulated = rounded + (1 + rounded) * accumulation_error(static_cast<double>(s.k));
  const auto columns = static_cast<size_t>(s.n);

  OracleOutput y;
  y.value.shape = problem.outputs[0].shape;
  std::vector<double> sum(columns);
  std::vector<double> magnitude(columns);
  for (int64_t i = 0; i < s.m; ++i) {
    std::fill(sum.begin(), sum.end(), 0.0);
    std::fill(magnitude.begin(), magnitude.end(), 0.0);
    for (int64_t k = 0; k < s.k; ++k) {
      for (size_t j = 0; j < columns; ++j) {
        const auto column = static_cast<int64_t>(j);
        const double term = x[i * s.k + k] * w[nk ? column * s.k + k : k * s.n + column];
        sum[j] += term;
        magnitude[j] += std::abs(term);
      }
    }
    for (size_t j = 0; j < columns; ++j) {
      double value = sum[j] + (inputs.size() == 3 ? inputs[2].data[j] : 0.0);
      double bound = accumulated * magnitude[j];
      if (inputs.size() == 3) bound += unit_roundoff(DType::kF32) * (std::abs(value) + bound);
      if (!std::isfinite(value)) bound = 0;
      if (attrs.activation == Activation::kRelu && value <= 0) {
        bound = std::max(0.0, value + bound);
        value = 0;
      }
      y.value.data.push_back(value);
      y.bound.push_back(bound);
    }
  }
  return {y};
}

}  // namespace me
