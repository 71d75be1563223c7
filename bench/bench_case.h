// A case of one element type, with random inputs in host memory and what the oracle makes of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/cases.h"
#include "bench/samples.h"
#include "ops/base/check.h"
#include "ops/base/kernel.h"
#include "ops/device/device.h"

namespace me::bench {

// A case as a kernel sees it, without memory. The problem points at the attributes.
struct CaseProblem {
  std::unique_ptr<Attrs> attrs;
  Problem problem;
};
CaseProblem problem_of(const CaseSpec& spec, DType dtype, const DeviceInfo& device);

class BenchCase {
 public:
  // Inputs are normal, with one element in 64 ten times as large.
  BenchCase(const CaseSpec& spec, DType dtype, const DeviceInfo& device);

  const Problem& problem() const { return case_.problem; }
  // From the first element to the last.
  void* input(size_t i) const { return inputs_[i].data(); }

  // Judges an output: its samples against the oracle, and that no NaN is left anywhere, since there
  // is none in the inputs.
  CheckReport check(const void* output) const;

 private:
  struct Expected {
    ViewPlacement at;
    OracleOutput value;
  };
  Expected expect(const Sample& sample) const;

  CaseProblem case_;
  std::vector<Memory> inputs_;
  std::vector<Expected> expected_;
};

}  // namespace me::bench
