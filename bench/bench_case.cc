#include "bench/bench_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>

#include "engine/runtime/kernel_timer.h"
#include "ops/registry.h"

namespace me::bench {
namespace {

template <class T>
T value_of(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().to_string());
  return std::move(result).value();
}

// Prime, so that the rows of a tensor that repeats it differ.
constexpr int64_t kPeriod = 1048573;

const std::vector<float>& normal_block(uint64_t seed) {
  static std::map<uint64_t, std::vector<float>> blocks;
  std::vector<float>& block = blocks[seed];
  if (!block.empty()) return block;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < kPeriod; ++i) {
    const float outlier = random() % 64 == 0 ? 10.0f : 1.0f;
    block.push_back(normal(random) * outlier);
  }
  return block;
}

// Copying is many times as fast as drawing and rounding.
void fill_normal(std::byte* data, DType dtype, int64_t n, uint64_t seed) {
  const std::vector<float>& block = normal_block(seed);
  const int64_t first = std::min(n, kPeriod);
  for (int64_t i = 0; i < first; ++i) store_f32(data, i, dtype, block[static_cast<size_t>(i)]);
  for (int64_t at = first; at < n; at += kPeriod) {
    const int64_t bytes = std::min(kPeriod, n - at) * size_of(dtype);
    std::memcpy(data + at * size_of(dtype), data, static_cast<size_t>(bytes));
  }
}

template <class Bits>
int64_t count_above(const void* data, int64_t n, Bits magnitude, Bits infinity) {
  const auto* bits = static_cast<const Bits*>(data);
  int64_t found = 0;
  for (int64_t i = 0; i < n; ++i) found += (bits[i] & magnitude) > infinity;
  return found;
}

// Among n elements side by side.
int64_t count_nan(const void* data, int64_t n, DType dtype) {
  if (dtype == DType::kF32) return count_above<uint32_t>(data, n, 0x7FFFFFFF, 0x7F800000);
  return count_above<uint16_t>(data, n, 0x7FFF, dtype == DType::kF16 ? 0x7C00 : 0x7F80);
}

TensorView view_at(const ViewPlacement& part, const void* data) {
  const auto* bytes = static_cast<const std::byte*>(data) + part.offset * size_of(part.desc.dtype);
  return view_of(part.desc, const_cast<std::byte*>(bytes));  // a view has no const; it is only read
}

}  // namespace

CaseProblem problem_of(const CaseSpec& spec, DType dtype, const DeviceInfo& device) {
  const OpDef* op = find_op(spec.op);
  if (op == nullptr) throw std::runtime_error("no op " + spec.op);
  CaseProblem c;
  c.attrs = value_of(op->parse(spec.attrs));
  c.problem.op = op;
  c.problem.attrs = c.attrs.get();
  c.problem.device = device;
  std::vector<TensorType> types;
  for (size_t i = 0; i < spec.shapes.size(); ++i) {
    TensorDesc desc = dense(dtype, spec.shapes[i]);
    if (i < spec.strides.size() && spec.strides[i].rank() > 0) desc.strides = spec.strides[i];
    desc.alignment_bytes = kWorkspaceAlignment;
    desc.constant = i > 0 && spec.constant_weights;
    types.push_back(desc.type());
    c.problem.inputs.push_back(desc);
  }
  const TensorType output = value_of(op->infer(*c.attrs, types, {}))[0];
  c.problem.outputs.push_back(dense(output.dtype, output.shape));
  c.problem.outputs[0].alignment_bytes = kWorkspaceAlignment;
  return c;
}

BenchCase::BenchCase(const CaseSpec& spec, DType dtype, const DeviceInfo& device)
    : case_(problem_of(spec, dtype, device)) {
  const auto host = Device::open(DeviceInfo{});
  for (const TensorDesc& desc : problem().inputs) {
    inputs_.push_back(value_of(Memory::on_device(host, span_of(desc) * size_of(desc.dtype))));
    fill_normal(inputs_.back().data(), desc.dtype, span_of(desc), inputs_.size());
  }
  std::vector<std::future<Expected>> running;
  for (const Sample& sample : samples_of(problem())) {
    running.push_back(std::async(std::launch::async, [=, this] { return expect(sample); }));
  }
  for (auto& expected : running) expected_.push_back(expected.get());
}

BenchCase::Expected BenchCase::expect(const Sample& sample) const {
  Problem part = problem();
  if (sample.attrs != nullptr) part.attrs = sample.attrs.get();
  std::vector<F64Tensor> values;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    part.inputs[i] = sample.inputs[i].desc;
    values.push_back(to_f64(view_at(sample.inputs[i], inputs_[i].data())));
  }
  part.outputs[0] = sample.output.desc;
  return {sample.output, part.op->oracle(part, values).at(0)};
}

CheckReport BenchCase::check(const void* output) const {
  CheckReport worst;
  worst.passed = true;
  for (const Expected& expected : expected_) {
    CheckReport report = check_output(view_at(expected.at, output), expected.value);
    const double max_rel_error = std::max(worst.max_rel_error, report.max_rel_error);
    const bool passed = worst.passed && report.passed;
    if (!(report.worst_ratio <= worst.worst_ratio)) worst = std::move(report);
    worst.max_rel_error = max_rel_error;
    worst.passed = passed;
  }
  const TensorDesc& whole = problem().outputs[0];
  if (const int64_t nan = count_nan(output, whole.count(), whole.dtype); nan > 0) {
    worst.passed = false;
    worst.worst_ratio = std::numeric_limits<double>::infinity();
    worst.message = fmt::format("{} elements of {} are NaN", nan, whole.count());
  }
  return worst;
}

}  // namespace me::bench
