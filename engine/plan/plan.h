// From a graph to everything a run needs, decided beforehand: shapes, which values are views, one
// arena, a kernel for every node with the reasons.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/graph.h"
#include "engine/plan/arena.h"
#include "engine/plan/tuning.h"
#include "ops/base/kernel.h"

namespace me {

struct PlanOptions {
  Symbols symbols;  // all of the graph's: see bind_symbols
  DeviceInfo device;
  // Node name → kernel name: this kernel or an error, instead of the cheapest.
  std::map<std::string, std::string> kernels;
  // Kernels and configurations as they were measured, before what kernels expect of themselves.
  // Null: none. A node whose kernel is asked for by name takes it no matter what was measured.
  std::shared_ptr<const TuningCache> tuning;
};

// Where a value lies. Views lie inside the value they view.
struct PlannedValue {
  TensorDesc desc;
  int weight = -1;           // the weight (index of a value) whose bytes hold it, or -1: the arena
  int64_t offset_bytes = 0;  // of element 0, from the start of the arena or of the weight
  int view_of = -1;          // the value it is a view of, or -1
};

struct RejectedKernel {
  std::string name;
  std::string reason;
};

// What happens at a node.
struct Step {
  int node = -1;
  Problem problem;
  const KernelEntry* kernel = nullptr;  // null: a view, nothing runs
  std::string reason;                   // why this kernel, or what the view or copy is for
  double cost_us = 0;                   // the kernel's estimate
  std::vector<RejectedKernel> rejected;
  Work work;
  int64_t workspace_bytes = 0;
  int64_t workspace_offset = 0;  // in the arena
};

// Immutable. Shares the graph.
class Plan {
 public:
  // Errors: kInvalid where shapes disagree under these symbols or a named kernel does not exist or
  // refuses; kDevice where no kernel takes a node.
  static Result<std::shared_ptr<const Plan>> make(std::shared_ptr<const Graph> graph,
                                                  const PlanOptions& options);

  const Graph& graph() const { return *graph_; }
  const std::shared_ptr<const Graph>& share_graph() const { return graph_; }
  const DeviceInfo& device() const { return device_; }
  const Symbols& symbols() const { return symbols_; }
  const std::vector<PlannedValue>& values() const { return values_; }  // by the graph's index
  const std::vector<Step>& steps() const { return steps_; }            // one per node, in order
  const ArenaLayout& arena() const { return arena_; }
  int64_t weight_bytes() const;

  // For people: the nodes with shapes, costs and kernels, why each was chosen and the others were
  // not, and the memory.
  std::string explain() const;

 private:
  Plan() = default;
  Status place_values(const std::vector<TensorType>& types);
  Status choose_kernels(const PlanOptions& options);
  Status lay_out_memory();

  std::shared_ptr<const Graph> graph_;
  DeviceInfo device_;
  Symbols symbols_;
  std::vector<PlannedValue> values_;
  std::vector<Step> steps_;
  ArenaLayout arena_;
};

}  // namespace me
