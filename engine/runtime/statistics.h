// Summaries of repeated measurements.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace me {

// Of one or more samples, in their unit.
struct Statistics {
  int64_t count = 0;
  double min = 0;
  double median = 0;
  double mean = 0;
  // Nothing where fewer than kBeyond samples lie beyond: a tail is not read off a handful.
  std::optional<double> p90;
  std::optional<double> p95;
  std::optional<double> p99;
  std::optional<double> p99_9;
  double max = 0;
  double spread = 0;  // the middle half's width over the median

  static constexpr int64_t kBeyond = 10;
};

// Requires one sample.
Statistics summarize(std::vector<double> samples);

// Median of the samples; the mean of the middle two where their number is even. Requires one.
double median(std::vector<double> samples);

}  // namespace me
