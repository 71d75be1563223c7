#include "ops/base/op.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace me {

std::string to_string(const DeviceInfo& device) {
  if (device.backend == Backend::kCpu) {
    return fmt::format("cpu, {} thread{}", device.threads, device.threads == 1 ? "" : "s");
  }
  return fmt::format("cuda:{}, {}, {}.{}, {} multiprocessors", device.index, device.name,
                     device.compute_capability / 10, device.compute_capability % 10,
                     device.multiprocessors);
}

double accumulation_error(double n) {
  constexpr double kUnitRoundoff = 0x1p-24;
  return std::min(n, kLambda * std::sqrt(n)) * kUnitRoundoff;
}

}  // namespace me
