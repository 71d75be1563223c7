// Latencies of repeated runs.
#pragma once

#include <functional>
#include <vector>

namespace me {

struct Latency {
  double first_us = 0;  // the first run, cold caches and all
  int runs = 0;         // further runs that the figures below are over
  double min_us = 0;
  double median_us = 0;
  double max_us = 0;
};

// Calls run() once, then up to `runs` times more, stopping early after `seconds`. Host time, by the
// steady clock.
Latency measure_latency(const std::function<void()>& run, int runs, double seconds);

}  // namespace me
