#include "engine/runtime/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>

namespace me {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

int64_t physical_memory_bytes() { return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE); }

// "the largest: "scores" 4294967296 bytes, …" so that the reader knows what to shrink.
std::string largest_tensors(const Plan& plan) {
  std::vector<std::pair<int64_t, std::string>> sizes;
  for (size_t v = 0; v < plan.values().size(); ++v) {
    const PlannedValue& value = plan.values()[v];
    if (value.weight < 0 && value.view_of < 0) {
      sizes.emplace_back(value.desc.bytes(), plan.graph().values[v].name);
    }
  }
  for (const Step& step : plan.steps()) {
    sizes.emplace_back(step.workspace_bytes,
                       "workspace of " + plan.graph().nodes[at(step.node)].name);
  }
  const size_t shown = std::min<size_t>(3, sizes.size());
  std::partial_sort(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(shown), sizes.end(),
                    std::greater<>());
  std::string out;
  for (size_t i = 0; i < shown; ++i) {
    out +=
        fmt::format("{}{} {} bytes", i > 0 ? ", " : "", in_quotes(sizes[i].second), sizes[i].first);
  }
  return out;
}

}  // namespace

void Session::FreeArena::operator()(std::byte* p) const { std::free(p); }

void* Session::address_of(int value) const {
  const PlannedValue& planned = plan_->values()[at(value)];
  if (planned.weight < 0) return arena_.get() + planned.offset_bytes;
  // Kernels read weights and never write them: Plan gives a weight to no output.
  return const_cast<std::byte*>(plan_->graph().values[at(planned.weight)].data.data()) +
         planned.offset_bytes;
}

TensorView Session::view_of_value(int value) const {
  return view_of(plan_->values()[at(value)].desc, address_of(value));
}

TensorView Session::input(size_t position) const {
  return view_of_value(plan_->graph().inputs.at(position));
}

TensorView Session::output(size_t position) const {
  return view_of_value(plan_->graph().outputs.at(position));
}

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const Plan> plan) {
  std::unique_ptr<Session> session(new Session);
  session->plan_ = std::move(plan);
  const Plan& p = *session->plan_;
  const int64_t bytes = std::max<int64_t>(p.arena().bytes, kArenaAlignment);
  void* memory = nullptr;
  if (bytes <= physical_memory_bytes()) {
    memory = std::aligned_alloc(kArenaAlignment, static_cast<size_t>(bytes));
  }
  if (memory == nullptr) {
    Error error{
        ErrorKind::kDevice,
        fmt::format("one run needs {} bytes and the machine has {}; the largest tensors: {}", bytes,
                    physical_memory_bytes(), largest_tensors(p))};
    error.file = p.graph().file;
    return error;
  }
  session->arena_.reset(static_cast<std::byte*>(memory));
  // NaN in every type: a kernel that reads what nobody wrote shows it.
  std::memset(memory, 0xFF, static_cast<size_t>(bytes));

  for (const Step& step : p.steps()) {
    if (step.kernel == nullptr) continue;
    const Node& node = p.graph().nodes[at(step.node)];
    std::vector<void*> inputs;
    std::vector<void*> outputs;
    for (int v : node.inputs) inputs.push_back(session->address_of(v));
    for (int v : node.outputs) outputs.push_back(session->address_of(v));
    auto op = step.kernel->prepare(
        step.problem, {inputs, outputs, session->arena_.get() + step.workspace_offset});
    if (!op.ok()) {
      Error error = op.error();
      error.file = p.graph().file;
      error.node = node.name;
      return error;
    }
    session->ops_.push_back(std::move(op).value());
  }
  return session;
}

void Session::run() {
  for (const auto& op : ops_) op->enqueue(nullptr);
}

}  // namespace me
