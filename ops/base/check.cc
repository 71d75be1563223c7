#include "ops/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace me {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Error over bound; at most 1 passes.
double error_ratio(double got, double want, double bound, DType dtype) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : kInfinity;
  if (std::isnan(got)) return kInfinity;
  if (got == want) return 0;
  if (std::isinf(want)) return kInfinity;
  if (std::isinf(got)) {  // legal only where rounding may overflow, and to the right side
    const double reach = std::copysign(want, got) == want ? std::abs(want) + bound : -1;
    return reach >= overflow_threshold(dtype) ? 0 : kInfinity;
  }
  const double rounding = unit_roundoff(dtype) * (std::abs(want) + bound) +
                          subnormal_roundoff(dtype) + std::numeric_limits<float>::min();
  return std::abs(got - want) / (bound + rounding);
}

}  // namespace

F64Tensor to_f64(const TensorView& tensor) {
  F64Tensor out{tensor.shape, {}};
  const int64_t n = tensor.count();
  out.data.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    out.data.push_back(load_f32(tensor.data, offset_of(tensor, i), tensor.dtype));
  }
  return out;
}

CheckReport check_output(const TensorView& got, const OracleOutput& want) {
  CheckReport report;
  if (!(got.shape == want.value.shape)) {
    report.failures = 1;
    report.worst_ratio = kInfinity;
    report.message =
        fmt::format("shape is {}, expected {}", to_string(got.shape), to_string(want.value.shape));
    return report;
  }
  double largest = 0;
  for (double v : want.value.data) {
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  }
  const int64_t n = got.count();
  for (int64_t i = 0; i < n; ++i) {
    const double g = load_f32(got.data, offset_of(got, i), got.dtype);
    const double w = want.value.data[static_cast<size_t>(i)];
    const double bound = want.bound[static_cast<size_t>(i)];
    const double ratio = error_ratio(g, w, bound, got.dtype);
    if (!(ratio <= 1)) ++report.failures;
    if (std::isfinite(g) && std::isfinite(w)) {
      report.max_abs_error = std::max(report.max_abs_error, std::abs(g - w));
    }
    if (report.worst_index < 0 || !(ratio <= report.worst_ratio)) {
      report.worst_ratio = ratio;
      report.worst_index = i;
      report.message = fmt::format("element {} of {}: {} where the oracle has {} (bound {:.3g})", i,
                                   n, g, w, bound);
    }
  }
  if (largest > 0) report.max_rel_error = report.max_abs_error / largest;
  report.passed = report.failures == 0;
  return report;
}

}  // namespace me
