#include "engine/runtime/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>

namespace me {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

// Host time of `body`, in microseconds.
template <class Body>
double host_us(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

int64_t aligned(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

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

std::byte* Session::address_of(int value) const {
  const PlannedValue& planned = plan_->values()[at(value)];
  if (planned.weight < 0) return arena_.data() + planned.offset_bytes;
  if (weights_.bytes() > 0) {
    return weights_.data() + weight_offsets_[at(planned.weight)] + planned.offset_bytes;
  }
  // Kernels read weights and never write them: Plan gives a weight to no output.
  return const_cast<std::byte*>(plan_->graph().values[at(planned.weight)].data.data()) +
         planned.offset_bytes;
}

TensorView Session::view_of_host(const HostBuffer& buffer) const {
  const TensorDesc& desc = plan_->values()[at(buffer.value)].desc;
  return view_of(desc, device_->host_memory() ? address_of(buffer.value) : buffer.memory.data());
}

TensorView Session::input(size_t position) const { return view_of_host(inputs_.at(position)); }

TensorView Session::output(size_t position) const { return view_of_host(outputs_.at(position)); }

std::vector<TensorView> Session::inputs() const {
  std::vector<TensorView> views;
  for (const HostBuffer& buffer : inputs_) views.push_back(view_of_host(buffer));
  return views;
}

Status Session::allocate() {
  const Plan& p = *plan_;
  const int64_t bytes = std::max<int64_t>(p.arena().bytes, kArenaAlignment);
  auto arena = Memory::on_device(device_, bytes);
  if (!arena.ok()) {
    Error error = arena.error();
    error.message = fmt::format(
        "one run needs {} bytes and {} has {} free; the largest tensors: {}{}", bytes,
        name_of(p.device().backend), device_->free_bytes(), largest_tensors(p), device_->way_on());
    error.file = p.graph().file;
    return error;
  }
  arena_ = std::move(arena).value();
  // NaN in every type: a kernel that reads what nobody wrote shows it.
  device_->fill(arena_.data(), 0xFF, bytes);

  const auto host_buffers = [this](const std::vector<int>& values, std::vector<HostBuffer>& to) {
    for (int v : values) {
      to.push_back({v, {}});
      if (device_->host_memory()) continue;
      auto memory = Memory::pinned(device_, plan_->values()[at(v)].desc.bytes());
      if (!memory.ok()) return Status(memory.error());
      to.back().memory = std::move(memory).value();
    }
    return Status(Ok{});
  };
  ME_RETURN_IF_ERROR(host_buffers(p.graph().inputs, inputs_));
  ME_RETURN_IF_ERROR(host_buffers(p.graph().outputs, outputs_));
  if (device_->host_memory()) return Ok{};

  int64_t weight_bytes = 0;
  for (const Value& value : p.graph().values) {
    weight_offsets_.push_back(weight_bytes);
    weight_bytes += aligned(static_cast<int64_t>(value.data.size()));
  }
  auto weights = Memory::on_device(device_, weight_bytes);
  if (!weights.ok()) {
    Error error = weights.error();
    error.message =
        fmt::format("the weights need {} bytes and {} has {} free{}", weight_bytes,
                    name_of(p.device().backend), device_->free_bytes(), device_->way_on());
    error.file = p.graph().file;
    return error;
  }
  weights_ = std::move(weights).value();
  for (size_t v = 0; v < weight_offsets_.size(); ++v) {
    const auto& data = p.graph().values[v].data;
    device_->upload(weights_.data() + weight_offsets_[v], data.data(),
                    static_cast<int64_t>(data.size()));
  }
  device_->wait();
  return Ok{};
}

Status Session::prepare() {
  const Plan& p = *plan_;
  for (const Step& step : p.steps()) {
    if (step.kernel == nullptr) continue;
    const Node& node = p.graph().nodes[at(step.node)];
    std::vector<void*> inputs;
    std::vector<void*> outputs;
    for (int v : node.inputs) inputs.push_back(address_of(v));
    for (int v : node.outputs) outputs.push_back(address_of(v));
    Result<std::unique_ptr<PreparedOp>> op(nullptr);
    double& cost_us = step.kernel->baseline ? startup_.tuning_us : startup_.modules_us;
    cost_us += host_us([&] {
      op = step.kernel->prepare(step.problem,
                                {inputs, outputs, arena_.data() + step.workspace_offset});
    });
    if (!op.ok()) {
      Error error = op.error();
      error.file = p.graph().file;
      error.node = node.name;
      return error;
    }
    ops_.push_back(std::move(op).value());
  }
  device_->wait();
  return Ok{};
}

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const Plan> plan) {
  std::unique_ptr<Session> session(new Session);
  Session& s = *session;
  s.plan_ = std::move(plan);
  s.startup_.device_us = host_us([&] { s.device_ = Device::open(s.plan_->device()); });
  Status status = Ok{};
  s.startup_.memory_us = host_us([&] { status = s.allocate(); });
  ME_RETURN_IF_ERROR(std::move(status));
  ME_RETURN_IF_ERROR(s.prepare());
  if (!s.device_->host_memory()) {  // a CPU has nothing to load or to capture
    s.startup_.warm_up_us = host_us([&] {
      s.launch_eager();
      s.wait();
    });
  }
  s.startup_.capture_us = host_us([&] {
    s.replay_ = s.device_->capture([&s](void* stream) {
      for (const auto& op : s.ops_) op->enqueue(stream);
    });
    s.wait();
  });
  return session;
}

void Session::copy_inputs() {
  for (const HostBuffer& buffer : inputs_) {
    device_->upload(address_of(buffer.value), buffer.memory.data(), buffer.memory.bytes());
  }
}

void Session::launch() { replay_->launch(); }

void Session::launch_eager() {
  for (const auto& op : ops_) op->enqueue(device_->stream());
}

void Session::copy_outputs() {
  for (const HostBuffer& buffer : outputs_) {
    device_->download(buffer.memory.data(), address_of(buffer.value), buffer.memory.bytes());
  }
}

void Session::run() {
  copy_inputs();
  launch();
  copy_outputs();
  wait();
}

}  // namespace me
