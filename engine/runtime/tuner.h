// The timed search for the fastest kernels and configurations.
#pragma once

#include <memory>

#include "engine/plan/plan.h"
#include "ops/device/device.h"

namespace me {

struct TunedPlan {
  std::shared_ptr<const Plan> plan;
  int measured = 0;  // problems that were not in `cache` before
};

// The plan of a graph by what `cache` says. Measures first the problems that it lacks, where there
// is more than one way to run them: every kernel but baselines, in every configuration, on random
// inputs, those within a quarter of the fastest once more in turns. Nodes whose kernel is asked for
// by name are left alone. Errors are those of Plan::make; throws what a failing device throws.
Result<TunedPlan> make_tuned_plan(const std::shared_ptr<const Graph>& graph, PlanOptions options,
                                  const std::shared_ptr<TuningCache>& cache);

// What results of this program hold for: device, driver, version.
std::string tuning_machine(const DeviceInfo& device);

}  // namespace me
