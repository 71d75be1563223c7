// What timed searches found: for a problem on a device, the kernel and its configuration that were
// fastest. Kept in a file, so that a problem is measured once per device, driver and version.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "ops/base/kernel.h"

namespace me {

struct TunedKernel {
  std::string kernel;
  std::string config;  // empty: the kernel has none
  double time_us = 0;  // device time of one launch

  bool operator==(const TunedKernel&) const = default;
};

// What is measured: the problem's shapes, strides, types and attributes. `fields`: the attributes
// as the model has them.
std::string tuning_key(const Problem& problem, const AttrMap& fields);

class TuningCache {
 public:
  // `machine`: what the results hold for (device, driver, version); others in the file are kept.
  explicit TuningCache(std::string machine) : machine_(std::move(machine)) {}

  // Adds what a file holds. A file that is not there holds nothing; one that is no tuning cache is
  // an error (kInvalid).
  Status load(const std::string& path);
  // Writes everything, or leaves the file as it was. Results that others added since it was loaded
  // are lost.
  Status save(const std::string& path) const;

  // Nothing where the problem has not been measured on this machine.
  std::optional<TunedKernel> find(const std::string& key) const;
  void put(const std::string& key, TunedKernel result);

 private:
  std::string machine_;
  std::map<std::string, std::map<std::string, TunedKernel>> results_;  // by machine, by key
};

}  // namespace me
