// The choice among the configurations of one of linear's CUDA kernels. A Choice has cost_us and a
// to_string(), the configuration's name.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/base/kernel.h"

namespace me {

template <class Choice>
void sort_by_cost(std::vector<Choice>& choices) {
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return a.cost_us < b.cost_us; });
}

// The problem's configuration, or the cheapest where it names none.
template <class Choice>
std::optional<Choice> choose(const Problem& p, const std::vector<Choice>& cheapest_first) {
  for (const Choice& c : cheapest_first) {
    if (p.config.empty() || to_string(c) == p.config) return c;
  }
  return std::nullopt;
}

template <class Choice>
std::vector<KernelConfig> configs_of(const std::vector<Choice>& cheapest_first) {
  std::vector<KernelConfig> all;
  for (const Choice& c : cheapest_first) all.push_back({to_string(c), c.cost_us});
  return all;
}

template <class Choice>
Support support_of(const Problem& p, const std::vector<Choice>& cheapest_first,
                   std::string_view products) {
  const auto choice = choose(p, cheapest_first);
  if (choice) {
    return Support::yes(choice->cost_us, std::string(products) + ", " + to_string(*choice));
  }
  return Support::no(p.config.empty() ? "no tiling of it fits the device"
                                      : "has no configuration " + p.config);
}

}  // namespace me
