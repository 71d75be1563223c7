#include "engine/runtime/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace me {
namespace {

// The smallest sample that at least the fraction p of all does not exceed.
double quantile(const std::vector<double>& sorted, double p) {
  const auto rank = static_cast<size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[rank == 0 ? 0 : rank - 1];
}

std::optional<double> tail(const std::vector<double>& sorted, double p) {
  const double beyond = (1 - p) * static_cast<double>(sorted.size());
  // Half a sample of room: 0.1 · 100 is not quite 10.
  if (beyond + 0.5 < static_cast<double>(Statistics::kBeyond)) return std::nullopt;
  return quantile(sorted, p);
}

double median_of_sorted(const std::vector<double>& sorted) {
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : 0.5 * (sorted[middle - 1] + sorted[middle]);
}

}  // namespace

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return median_of_sorted(samples);
}

Statistics summarize(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  Statistics s;
  s.count = static_cast<int64_t>(samples.size());
  s.min = samples.front();
  s.median = median_of_sorted(samples);
  s.mean =
      std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
  s.p90 = tail(samples, 0.90);
  s.p95 = tail(samples, 0.95);
  s.p99 = tail(samples, 0.99);
  s.p99_9 = tail(samples, 0.999);
  s.max = samples.back();
  if (s.median > 0) s.spread = (quantile(samples, 0.75) - quantile(samples, 0.25)) / s.median;
  return s;
}

}  // namespace me
