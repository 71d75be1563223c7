#include "ops/base/op.h"

#include <algorithm>
#include <cmath>

namespace me {

double accumulation_error(double n) {
  constexpr double kUnitRoundoff = 0x1p-24;
  return std::min(n, kLambda * std::sqrt(n)) * kUnitRoundoff;
}

}  // namespace me
