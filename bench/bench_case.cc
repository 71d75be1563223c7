#include "bench/bench_case.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <set>
#include <stdexcept>

#include "ops/base/check.h"
#include "ops/registry.h"

namespace me::bench {
namespace {

Memory allocate(int64_t bytes) {
  const int64_t padded = (bytes + kWorkspaceAlignment) / kWorkspaceAlignment * kWorkspaceAlignment;
  Memory memory(std::aligned_alloc(kWorkspaceAlignment, static_cast<size_t>(padded)));
  if (!memory) throw std::bad_alloc();
  return memory;
}

// Elements from the first to the last one.
int64_t span_of(const TensorDesc& t) {
  int64_t last = 0;
  for (int i = 0; i < t.shape.rank(); ++i) {
    if (t.shape[i] == 0) return 0;
    last += (t.shape[i] - 1) * t.strides[i];
  }
  return last + 1;
}

void fill_normal(void* data, DType dtype, int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < n; ++i) {
    const float outlier = random() % 64 == 0 ? 10.0f : 1.0f;
    store_f32(data, i, dtype, normal(random) * outlier);
  }
}

TensorView at_index(TensorView t, int axis, int64_t index) {
  t.data = static_cast<char*>(t.data) + index * t.strides[axis] * size_of(t.dtype);
  t.shape[axis] = 1;
  return t;
}

}  // namespace

void FreeDelete::operator()(void* p) const { std::free(p); }

BenchCase::BenchCase(const CaseSpec& spec, DType dtype, int threads) : sampled_(spec.sampled) {
  const OpDef* op = find_op(spec.op);
  if (op == nullptr) throw std::invalid_argument("no op " + spec.op);
  auto attrs = op->parse(spec.attrs);
  if (!attrs.ok()) throw std::invalid_argument(attrs.error().to_string());
  attrs_ = std::move(attrs).value();
  problem_.op = op;
  problem_.attrs = attrs_.get();
  problem_.device.threads = threads;

  std::vector<TensorType> types;
  for (size_t i = 0; i < spec.shapes.size(); ++i) {
    TensorDesc desc = dense(dtype, spec.shapes[i]);
    if (i < spec.strides.size() && spec.strides[i].rank() > 0) desc.strides = spec.strides[i];
    desc.alignment_bytes = kWorkspaceAlignment;
    desc.constant = i > 0 && spec.constant_weights;
    types.push_back(desc.type());
    inputs_.push_back(allocate(span_of(desc) * size_of(dtype)));
    fill_normal(inputs_.back().get(), dtype, span_of(desc), i + 1);
    problem_.inputs.push_back(desc);
  }
  auto outputs = op->infer(*attrs_, types, {});
  if (!outputs.ok()) throw std::invalid_argument(outputs.error().to_string());
  problem_.outputs.push_back(dense(outputs.value()[0].dtype, outputs.value()[0].shape));
  problem_.outputs[0].alignment_bytes = kWorkspaceAlignment;
  output_ = allocate(problem_.outputs[0].bytes());
}

Result<std::unique_ptr<PreparedOp>> BenchCase::prepare(const KernelEntry& kernel) {
  workspace_ = allocate(workspace_of(kernel, problem_));
  std::vector<void*> inputs;
  for (const Memory& memory : inputs_) inputs.push_back(memory.get());
  void* outputs[] = {output_.get()};
  return kernel.prepare(problem_, {inputs, outputs, workspace_.get()});
}

void BenchCase::poison() {
  std::memset(output_.get(), 0xFF, static_cast<size_t>(problem_.outputs[0].bytes()));
}

std::string BenchCase::check_at(const std::vector<TensorView>& inputs,
                                const TensorView& output) const {
  Problem problem = problem_;
  std::vector<F64Tensor> values;
  for (size_t i = 0; i < inputs.size(); ++i) {
    problem.inputs[i] = inputs[i];
    values.push_back(to_f64(inputs[i]));
  }
  problem.outputs[0] = output;
  const auto want = problem.op->oracle(problem, values);
  const CheckReport report = check_output(output, want.at(0));
  return report.passed ? "" : report.message;
}

std::string BenchCase::check() const {
  std::vector<TensorView> inputs;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    inputs.push_back(view_of(problem_.inputs[i], inputs_[i].get()));
  }
  const TensorView output = view_of(problem_.outputs[0], output_.get());
  if (sampled_.axis < 0) return check_at(inputs, output);
  const int64_t extent = output.shape[sampled_.axis];
  for (int64_t index : std::set<int64_t>{0, extent / 3, extent - 1}) {
    std::vector<TensorView> parts = inputs;
    for (const auto& [input, divisor] : sampled_.inputs) {
      parts[input] = at_index(parts[input], sampled_.axis, index / divisor);
    }
    const std::string fault = check_at(parts, at_index(output, sampled_.axis, index));
    if (!fault.empty()) return "index " + std::to_string(index) + ": " + fault;
  }
  return "";
}

}  // namespace me::bench
