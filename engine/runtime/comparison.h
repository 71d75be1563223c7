// A model's kernels against baselines and against the FP64 oracle, node by node.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/plan.h"
#include "engine/runtime/statistics.h"
#include "ops/base/check.h"
#include "ops/device/device.h"

namespace me {

// How far an arm is from the model's exact values after a node. All are maxima over the output's
// elements, relative to the largest exact magnitude; infinite where an arm has NaN or infinity and
// the exact value has not.
struct ArmError {
  double added = 0;      // by the node's kernel, from the inputs that it really got
  double inherited = 0;  // what exact arithmetic makes of those inputs
  double total = 0;
  int64_t nan = 0;  // elements of the arm's output
  int64_t infinite = 0;
};

struct KernelResult {
  std::string kernel;
  bool baseline = false;
  std::string refusal;                // why it does not take the problem; the rest is then empty
  CheckReport check;                  // against the oracle on the same inputs
  std::optional<Statistics> time_us;  // nothing where the check failed (baselines are timed anyway)
};

struct NodeComparison {
  int node = -1;
  std::string bound;  // what the check's bound is made of
  Work work;
  bool warm_cache = false;            // operands may have been in the cache when timing
  std::vector<KernelResult> kernels;  // the plan's first; empty for a view
  ArmError custom;
  ArmError baseline;
  // The time that the measured ceilings allow, over the plan's kernel's time. Nothing for operands
  // in the cache, to which the ceiling of memory does not apply.
  std::optional<double> ceiling_fraction;
};

struct Comparison {
  std::vector<NodeComparison> nodes;
  double copy_bytes_per_s = 0;                 // the ceilings, measured in this run
  std::map<DType, double> matrix_flops_per_s;  // of the types that linear nodes have
  std::optional<Statistics> custom_us;         // one replay of the whole model
  std::optional<Statistics> baseline_us;       // with baselines wherever they take the node
  int first_failure = -1;                      // node whose plan's kernel exceeds its bound
};

struct CompareOptions {
  std::vector<std::string> with;  // further kernels to measure, wherever they take the problem
};

// kInvalid where the options name a kernel that the plan's device does not have.
Status check_options(const CompareOptions& options, const Plan& plan);

// Runs the plan's nodes in order on `inputs` (host memory, dense, one for each of the graph's
// inputs), freeing each value behind its last reader. Two arms go through the model: the plan's
// kernels, and baselines where there are any (the plan's kernel elsewhere). kDevice where memory
// lacks.
Result<Comparison> compare(const std::shared_ptr<const Plan>& plan,
                           const std::vector<TensorView>& inputs, const CompareOptions& options);

}  // namespace me
