#include "engine/runtime/latency.h"

#include <algorithm>
#include <chrono>

#include "engine/runtime/statistics.h"

namespace me {

Latency measure_latency(const std::function<void()>& run, int runs, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto time_us = [&] {
    const auto begin = Clock::now();
    run();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  };
  Latency latency;
  latency.first_us = time_us();
  std::vector<double> samples;
  double spent_us = 0;
  while (static_cast<int>(samples.size()) < runs && spent_us < seconds * 1e6) {
    samples.push_back(time_us());
    spent_us += samples.back();
  }
  latency.runs = static_cast<int>(samples.size());
  if (!samples.empty()) {
    latency.min_us = *std::min_element(samples.begin(), samples.end());
    latency.max_us = *std::max_element(samples.begin(), samples.end());
    latency.median_us = median(samples);
  }
  return latency;
}

}  // namespace me
