// A kernel's output against the FP64 oracle.
#pragma once

#include <string>

#include "ops/base/op.h"

namespace me {

// Every element of a strided tensor, in row-major order. Exact.
F64Tensor to_f64(const TensorView& tensor);

struct CheckReport {
  bool passed = false;
  int64_t failures = 0;      // elements outside their bound
  double worst_ratio = 0;    // largest error over its bound (infinite for a wrong NaN or infinity)
  int64_t worst_index = -1;  // its row-major index, -1 where there is no element
  double max_abs_error = 0;  // over the elements where both are finite
  double max_rel_error =
      0;                // largest error over the largest finite magnitude of the oracle's values
  std::string message;  // one line on the worst element; empty when everything is exact
};

// Judges each element of `got` by |got - want| <= bound + rounding of got's type (unit roundoff of
// the value, half a subnormal step, and 2^-126, below which error is free). NaN must meet NaN, and
// an infinity the same infinity, except where the value is within its bound of overflowing. The
// test is written so that NaN fails.
CheckReport check_output(const TensorView& got, const OracleOutput& want);

}  // namespace me
