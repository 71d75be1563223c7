#include "tests/ops/kernel_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <stdexcept>

#include "ops/registry.h"

namespace me::testing {
namespace {

// Storage in elements from element 0 to the last one.
int64_t span_of(const TensorDesc& desc) {
  if (desc.count() == 0) return 0;
  int64_t last = 0;
  for (int i = 0; i < desc.shape.rank(); ++i) last += (desc.shape[i] - 1) * desc.strides[i];
  return last + 1;
}

// Memory of the test device that starts `shift` bytes after an aligned address.
class TestMemory {
 public:
  TestMemory(std::span<const uint8_t> bytes, int64_t shift)
      : shift_(shift), size_(static_cast<int64_t>(bytes.size())) {
    auto memory = Memory::on_device(test_device(), size_ + shift);
    if (!memory.ok()) throw std::runtime_error(memory.error().to_string());
    memory_ = std::move(memory).value();
    // NaN in front, where a kernel that takes whole words or chunks may look but not care.
    const std::vector<uint8_t> front(static_cast<size_t>(shift), 0xFF);
    test_device()->upload(memory_.data(), front.data(), shift);
    test_device()->upload(data(), bytes.data(), size_);
  }
  uint8_t* data() const { return reinterpret_cast<uint8_t*>(memory_.data()) + shift_; }
  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> bytes(static_cast<size_t>(size_));
    test_device()->download(bytes.data(), data(), size_);
    test_device()->wait();
    return bytes;
  }

 private:
  Memory memory_;
  int64_t shift_;
  int64_t size_;
};

}  // namespace

Backend test_backend() {
  const char* name = std::getenv("ME_TEST_BACKEND");
  return name != nullptr && std::string_view(name) == "cuda" ? Backend::kCuda : Backend::kCpu;
}

namespace {

Result<DeviceInfo> test_device_info() {
  static const auto* const info = new Result<DeviceInfo>(
      test_backend() == Backend::kCuda ? find_cuda_device(0) : Result<DeviceInfo>(DeviceInfo{}));
  return *info;
}

}  // namespace

std::string missing_device() {
  const auto info = test_device_info();
  return info.ok() ? "" : info.error().to_string();
}

const std::shared_ptr<Device>& test_device() {
  // Never closed: at exit the CUDA runtime may be gone before it.
  static const auto* const device =
      new std::shared_ptr<Device>(Device::open(test_device_info().value()));
  return *device;
}

bool is_under_test(const KernelEntry& kernel) {
  return kernel.backend == test_backend() && !kernel.baseline;
}

HostTensor::HostTensor(DType dtype, const Dims& shape)
    : HostTensor(dtype, shape, dense_strides(shape)) {}

HostTensor::HostTensor(DType dtype, const Dims& shape, const Dims& strides) {
  desc_.dtype = dtype;
  desc_.shape = shape;
  desc_.strides = strides;
  desc_.alignment_bytes = size_of(dtype);
  const int64_t item = size_of(dtype);
  storage_.assign(static_cast<size_t>(2 * kGuardBytes + span_of(desc_) * item), 0xFF);
  is_element_.assign(storage_.size(), false);
  for (int64_t i = 0; i < desc_.count(); ++i) {
    const int64_t at = kGuardBytes + offset_of(desc_, i) * item;
    for (int64_t b = 0; b < item; ++b) is_element_[static_cast<size_t>(at + b)] = true;
  }
}

TensorView HostTensor::view() const {
  return view_of(desc_, const_cast<uint8_t*>(storage_.data()) + kGuardBytes);
}

float HostTensor::get(int64_t linear) const {
  return load_f32(view().data, offset_of(desc_, linear), desc_.dtype);
}

void HostTensor::set(int64_t linear, float value) {
  store_f32(view().data, offset_of(desc_, linear), desc_.dtype, value);
}

HostTensor& HostTensor::fill_normal(uint64_t seed, float scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  for (int64_t i = 0; i < desc_.count(); ++i) {
    const float outlier = random() % 64 == 0 ? 10.0f : 1.0f;
    set(i, normal(random) * outlier);
  }
  return *this;
}

HostTensor& HostTensor::fill(const std::vector<float>& values) {
  if (static_cast<int64_t>(values.size()) != desc_.count()) {
    throw std::invalid_argument("HostTensor::fill: wrong number of values");
  }
  for (int64_t i = 0; i < desc_.count(); ++i) set(i, values[static_cast<size_t>(i)]);
  return *this;
}

bool HostTensor::guards_intact() const {
  for (size_t i = 0; i < storage_.size(); ++i) {
    if (!is_element_[i] && storage_[i] != 0xFF) return false;
  }
  return true;
}

std::vector<uint8_t> HostTensor::element_bytes() const {
  std::vector<uint8_t> bytes;
  const int64_t item = size_of(desc_.dtype);
  for (int64_t i = 0; i < desc_.count(); ++i) {
    const int64_t at = kGuardBytes + offset_of(desc_, i) * item;
    bytes.insert(bytes.end(), storage_.begin() + at, storage_.begin() + at + item);
  }
  return bytes;
}

PreparedCase make_problem(const std::string& op_name, const AttrMap& attr_map,
                          const std::vector<TensorDesc>& inputs) {
  const OpDef* op = find_op(op_name);
  if (op == nullptr) throw std::invalid_argument("no op " + op_name);
  auto attrs = op->parse(attr_map);
  if (!attrs.ok()) throw std::invalid_argument(attrs.error().to_string());
  std::vector<TensorType> input_types;
  for (const TensorDesc& desc : inputs) input_types.push_back(desc.type());
  auto types = op->infer(*attrs.value(), input_types, {});
  if (!types.ok()) throw std::invalid_argument(types.error().to_string());
  PreparedCase out{std::move(attrs).value(), {}};
  out.problem.op = op;
  out.problem.attrs = out.attrs.get();
  const auto device = test_device_info();
  if (device.ok()) out.problem.device = device.value();
  out.problem.inputs = inputs;
  for (const TensorType& type : types.value()) {
    out.problem.outputs.push_back(dense(type.dtype, type.shape));
  }
  for (TensorDesc& desc : out.problem.inputs) desc.alignment_bytes = kWorkspaceAlignment;
  for (TensorDesc& desc : out.problem.outputs) desc.alignment_bytes = kWorkspaceAlignment;
  return out;
}

PreparedCase make_problem(const OpCase& c, Placement placement) {
  std::vector<TensorDesc> inputs;
  for (const HostTensor& t : c.inputs) {
    inputs.push_back(t.desc());
    inputs.back().constant = c.constant_weights && inputs.size() > 1;
  }
  PreparedCase out = make_problem(c.op, c.attrs, inputs);
  out.problem.device.threads = c.threads;
  out.problem.config = c.config;
  for (TensorDesc& desc : out.problem.outputs) {
    if (c.output_strides.rank() > 0) desc.strides = c.output_strides;
  }
  if (placement == Placement::kOneElementOff) {
    for (TensorDesc& desc : out.problem.inputs) desc.alignment_bytes = size_of(desc.dtype);
    for (TensorDesc& desc : out.problem.outputs) desc.alignment_bytes = size_of(desc.dtype);
  }
  return out;
}

HostTensor run_kernel(const KernelEntry& kernel, const OpCase& c, Placement placement) {
  const PreparedCase prepared = make_problem(c, placement);
  const auto shift = [placement](DType dtype) {
    return placement == Placement::kAligned ? 0 : size_of(dtype);
  };
  const TensorDesc& desc = prepared.problem.outputs.at(0);
  HostTensor output(desc.dtype, desc.shape, desc.strides);
  const std::vector<uint8_t> poison(
      static_cast<size_t>(workspace_of(kernel, prepared.problem) + HostTensor::kGuardBytes), 0xFF);
  const TestMemory workspace(poison, 0);
  const TestMemory output_memory(output.storage(), shift(desc.dtype));
  std::vector<TestMemory> input_memory;
  std::vector<void*> inputs;
  for (const HostTensor& t : c.inputs) {
    input_memory.emplace_back(t.body(), shift(t.desc().dtype));
    inputs.push_back(input_memory.back().data());
  }
  void* outputs[] = {output_memory.data() + HostTensor::kGuardBytes};
  auto op = kernel.prepare(prepared.problem, {inputs, outputs, workspace.data()});
  if (!op.ok()) {
    ADD_FAILURE() << kernel.name << ": " << op.error().to_string();
    return output;
  }
  op.value()->enqueue(test_device()->stream());
  std::ranges::copy(output_memory.bytes(), output.storage().begin());
  EXPECT_TRUE(output.guards_intact()) << kernel.name << " wrote outside its output";
  const std::vector<uint8_t> scratch = workspace.bytes();
  EXPECT_TRUE(std::all_of(scratch.end() - HostTensor::kGuardBytes, scratch.end(),
                          [](uint8_t byte) { return byte == 0xFF; }))
      << kernel.name << " wrote past its workspace";
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(input_memory[i].bytes(), c.inputs[i].body()))
        << kernel.name << " wrote into input " << i;
  }
  return output;
}

OracleOutput run_oracle(const OpCase& c) {
  const PreparedCase prepared = make_problem(c);
  std::vector<F64Tensor> inputs;
  for (const HostTensor& t : c.inputs) inputs.push_back(to_f64(t.view()));
  return prepared.problem.op->oracle(prepared.problem, inputs).at(0);
}

void expect_kernels_match_oracle(const OpCase& c) {
  const OracleOutput want = run_oracle(c);
  int offered = 0;
  int ran = 0;
  std::string refusals;
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->op != c.op || !is_under_test(*kernel)) continue;
    ++offered;
    for (const Placement placement : {Placement::kAligned, Placement::kOneElementOff}) {
      const PreparedCase prepared = make_problem(c, placement);
      const bool aligned = placement == Placement::kAligned;
      SCOPED_TRACE(fmt::format("{}, {}", kernel->name, aligned ? "aligned" : "one element off"));
      const Support support = kernel->supports(prepared.problem);
      if (!support.ok) {
        EXPECT_FALSE(support.reason.empty()) << "refuses without a reason";
        refusals += fmt::format("\n  {}: {}", kernel->name, support.reason);
        continue;
      }
      const HostTensor first = run_kernel(*kernel, c, placement);
      const HostTensor second = run_kernel(*kernel, c, placement);
      ++ran;
      const CheckReport report = check_output(first.view(), want);
      EXPECT_TRUE(report.passed) << report.failures
                                 << " elements outside their bound; worst: " << report.message;
      EXPECT_EQ(first.element_bytes(), second.element_bytes()) << "two runs differ";
    }
  }
  if (offered == 0) {
    GTEST_SKIP() << fmt::format("this build leaves out the {} kernels of {}",
                                name_of(test_backend()), c.op);
  }
  EXPECT_GT(ran, 0) << "no kernel takes the problem:" << refusals;
}

int expect_configs_match_oracle(OpCase c) {
  const OracleOutput want = run_oracle(c);
  int configs = 0;
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->op != c.op || !is_under_test(*kernel) || kernel->configs == nullptr) continue;
    const PreparedCase own = make_problem(c);
    if (!kernel->supports(own.problem).ok) continue;
    for (const KernelConfig& config : kernel->configs(own.problem)) {
      c.config = config.name;
      SCOPED_TRACE(fmt::format("{}, {}", kernel->name, config.name));
      ++configs;
      EXPECT_TRUE(kernel->supports(make_problem(c).problem).ok);
      const HostTensor first = run_kernel(*kernel, c);
      const HostTensor second = run_kernel(*kernel, c);
      const CheckReport report = check_output(first.view(), want);
      EXPECT_TRUE(report.passed) << report.failures
                                 << " elements outside their bound; worst: " << report.message;
      EXPECT_EQ(first.element_bytes(), second.element_bytes()) << "two runs differ";
      c.config.clear();
    }
  }
  return configs;
}

std::string infer_error(std::string_view op, const AttrMap& attrs,
                        const std::vector<TensorType>& inputs) {
  const OpDef* def = find_op(op);
  if (def == nullptr) return "no such op";
  auto parsed = def->parse(attrs);
  if (!parsed.ok()) return parsed.error().to_string();
  const auto types = def->infer(*parsed.value(), inputs, {});
  return types.ok() ? "" : types.error().to_string();
}

}  // namespace me::testing
