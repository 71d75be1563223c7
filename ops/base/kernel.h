// What a kernel is: a row of the registry that says which problems it takes, what memory it needs
// and how to make it ready. Plan, then run: everything slow or fallible is in supports() and
// prepare().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ops/base/op.h"

namespace me {

// Whether a kernel takes a problem, and why. `cost_us` is its own estimate of the time; the plan
// takes the kernel with the lowest, the registry's order breaking ties.
struct Support {
  bool ok = false;
  double cost_us = 0;
  std::string reason;

  static Support yes(double cost_us, std::string reason) {
    return {true, cost_us, std::move(reason)};
  }
  static Support no(std::string reason) { return {false, 0, std::move(reason)}; }
};

// One of the ways in which a kernel can run a problem (tile, stages, split, ..), and what the
// kernel expects of it.
struct KernelConfig {
  std::string name;
  double cost_us = 0;
};

// Addresses for one prepared kernel. They stay fixed for its lifetime.
struct Buffers {
  std::span<void* const> inputs;
  std::span<void* const> outputs;
  void* workspace = nullptr;  // workspace_bytes() bytes, aligned to kWorkspaceAlignment
};

constexpr int64_t kWorkspaceAlignment = 256;

// A kernel bound to its addresses.
class PreparedOp {
 public:
  virtual ~PreparedOp() = default;
  // Allocates nothing, decides nothing, cannot fail for a reason known at plan time, and is legal
  // under stream capture. `stream` is a cudaStream_t for CUDA kernels and unused by CPU kernels,
  // which have finished when it returns.
  virtual void enqueue(void* stream) = 0;
};

struct KernelEntry {
  std::string_view op;    // OpDef::name
  std::string_view name;  // op_backend_variant
  Backend backend = Backend::kCpu;
  // Somebody else's kernel, here to be compared with: taken only where it is asked for by name, and
  // not held to this project's rules for NaN and infinities.
  bool baseline = false;
  Support (*supports)(const Problem& problem) = nullptr;
  // The ways in which it can run a problem that it supports, cheapest first; null: there is one.
  std::vector<KernelConfig> (*configs)(const Problem& problem) = nullptr;
  // Exact size of the scratch memory; null where there is none.
  int64_t (*workspace_bytes)(const Problem& problem) = nullptr;
  // Requires supports(problem).ok. May read inputs whose desc says `constant`.
  Result<std::unique_ptr<PreparedOp>> (*prepare)(const Problem& problem,
                                                 const Buffers& buffers) = nullptr;
};

inline int64_t workspace_of(const KernelEntry& kernel, const Problem& problem) {
  return kernel.workspace_bytes == nullptr ? 0 : kernel.workspace_bytes(problem);
}

// A PreparedOp from a callable `void(void* stream)`.
template <class F>
std::unique_ptr<PreparedOp> make_prepared(F run) {
  class Lambda final : public PreparedOp {
   public:
    explicit Lambda(F run) : run_(std::move(run)) {}
    void enqueue(void* stream) override { run_(stream); }

   private:
    F run_;
  };
  return std::make_unique<Lambda>(std::move(run));
}

// A problem's input or output in memory.
inline TensorView view_of(const TensorDesc& desc, void* data) {
  TensorView view;
  static_cast<TensorDesc&>(view) = desc;
  view.data = data;
  return view;
}

}  // namespace me
