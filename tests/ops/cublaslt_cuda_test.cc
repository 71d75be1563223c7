// The cuBLASLt rows of the registry on a GPU, with finite inputs: what the library makes of NaN and
// infinities is its own. Skipped, with the reason, where the library is not there.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <set>

#include "ops/attention/attention.h"
#include "ops/registry.h"
#include "tests/ops/cublaslt_case.h"

namespace me::testing {
namespace {

// Whether a row of the registry takes the case. Says why not, once for each reason.
bool takes(const KernelEntry& kernel, const OpCase& c, Placement placement) {
  static auto* const said = new std::set<std::string>;
  const Support support = kernel.supports(make_problem(c, placement).problem);
  EXPECT_FALSE(support.reason.empty());
  const std::string line = fmt::format("  {} refuses: {}", kernel.name, support.reason);
  if (!support.ok && said->insert(line).second) std::printf("%s\n", line.c_str());
  return support.ok;
}

class CudaBlasLtTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const LtLinearCase plain{.x_shape = {64, 64}, .n = 64, .bias = false, .dtype = GetParam()};
    const OpCase c = plain.build();
    const KernelEntry* const kernel = find_kernel("linear_cuda_cublaslt");
    if (kernel == nullptr) GTEST_SKIP() << "this build leaves cuBLASLt out";
    const Support support = kernel->supports(make_problem(c).problem);
    if (support.reason.find("not on this machine") != std::string::npos) {
      GTEST_SKIP() << support.reason;
    }
    ASSERT_TRUE(support.ok) << support.reason;
  }
};

// ‖y - want‖ / ‖want‖. Element by element the library is outside the oracle's bound where it rounds
// sums to 16 bits before it adds the bias, as some of its algorithms do.
double relative_distance(const HostTensor& y, const OracleOutput& want) {
  double difference = 0;
  double norm = 0;
  for (int64_t i = 0; i < y.desc().count(); ++i) {
    const double x = want.value.data[static_cast<size_t>(i)];
    difference += std::pow(y.get(i) - x, 2);
    norm += x * x;
  }
  return std::sqrt(difference / norm);
}

TEST_P(CudaBlasLtTest, LinearIsNearTheOracleWhereItIsTaken) {
  int taken = 0;
  for (const char* name : {"linear_cuda_cublaslt", "linear_cuda_cublaslt_first"}) {
    const KernelEntry& kernel = *find_kernel(name);
    for (const Placement placement : {Placement::kAligned, Placement::kOneElementOff}) {
      if (placement == Placement::kOneElementOff && kernel.name.ends_with("_first")) continue;
      for (int variant = 0; variant < 48; ++variant) {
        LtLinearCase linear{
            .x_shape = {variant % 2 == 0 ? 64 : 37, variant / 2 % 2 == 0 ? 128 : 51},
            .n = variant / 2 % 2 == 0 ? 96 : 45};
        linear.dtype = GetParam();
        linear.nk = variant / 4 % 2 == 0;
        linear.relu = variant / 8 % 2 == 0;
        linear.bias = variant / 16 > 0;
        linear.bias_dtype = variant / 16 == 1 ? GetParam() : DType::kF32;
        for (const char* output : {"", "F32"}) {
          linear.output_dtype = output;
          const OpCase c = linear.build();
          if (!takes(kernel, c, placement)) continue;
          ++taken;
          const HostTensor y = run_kernel(kernel, c, placement);
          const double error = relative_distance(y, run_oracle(c));
          EXPECT_LE(error, 4 * unit_roundoff(GetParam())) << name << " variant " << variant;
        }
      }
    }
  }
  EXPECT_GT(taken, 0);
}

// The scores are rounded to the inputs' type, so a weight may be off by twice the largest score's
// rounding, and the output by that of the largest value.
double materialised_bound(const OpCase& c, const AttentionSizes& s) {
  double largest_q = 0;
  double largest_k = 0;
  double largest_v = 0;
  const auto largest_row = [](const HostTensor& t) {
    double most = 0;
    const int64_t dim = t.desc().shape[3];
    for (int64_t row = 0; row < t.desc().count() / dim; ++row) {
      double square = 0;
      for (int64_t i = 0; i < dim; ++i) square += std::pow(t.get(row * dim + i), 2);
      most = std::max(most, std::sqrt(square));
    }
    return most;
  };
  largest_q = largest_row(c.inputs[0]);
  largest_k = largest_row(c.inputs[1]);
  for (int64_t i = 0; i < c.inputs[2].desc().count(); ++i) {
    largest_v = std::max(largest_v, std::abs(double{c.inputs[2].get(i)}));
  }
  const double u = unit_roundoff(c.inputs[0].desc().dtype);
  return 4 * u * (1 + std::abs(s.scale) * largest_q * largest_k) * largest_v;
}

TEST_P(CudaBlasLtTest, AttentionIsNearTheOracle) {
  int taken = 0;
  for (const char* name : {"attention_cuda_cublaslt", "attention_cuda_cublaslt_first"}) {
    const KernelEntry& kernel = *find_kernel(name);
    for (const int64_t kv_len : {1, 77, 256, 257, 600, 1100, 2100, 4100, 8200, 33000}) {
      for (int variant = 0; variant < 8; ++variant) {
        if (kv_len > 1100 && variant > 3) continue;  // the softmax's kernels are all that differs
        LtAttentionCase a{.batch = kv_len > 1100 ? 1 : 2,
                          .heads = 4,
                          .kv_heads = variant % 2 == 0 ? 4 : 2,
                          .q_len = 19,
                          .kv_len = kv_len,
                          .head_dim = kv_len > 4100 ? 8 : 64,
                          .value_dim = kv_len > 4100 ? 8 : 64,
                          .sequence_major = variant / 4 > 0,
                          .causal = variant / 2 % 2 > 0,
                          .dtype = GetParam()};
        if (kv_len > 1100) a.q_len = 3;
        const OpCase c = a.build();
        SCOPED_TRACE(fmt::format("{} kv_len {} variant {}", name, kv_len, variant));
        if (!takes(kernel, c, Placement::kAligned)) continue;
        ++taken;
        const PreparedCase prepared = make_problem(c);
        const HostTensor y = run_kernel(kernel, c);
        OracleOutput want = run_oracle(c);
        const double bound = materialised_bound(c, attention_sizes(prepared.problem));
        for (double& b : want.bound) b += bound;
        const CheckReport report = check_output(y.view(), want);
        EXPECT_TRUE(report.passed) << report.message;
      }
    }
  }
  EXPECT_GT(taken, 0);
}

// A captured product has the bits of an eager one.
TEST_P(CudaBlasLtTest, IsCaptured) {
  const LtLinearCase linear{.x_shape = {64, 128}, .n = 96, .bias = false, .dtype = GetParam()};
  const OpCase c = linear.build();
  for (const char* name : {"linear_cuda_cublaslt", "linear_cuda_cublaslt_first"}) {
    const KernelEntry& kernel = *find_kernel(name);
    const PreparedCase prepared = make_problem(c);
    if (!takes(kernel, c, Placement::kAligned)) continue;
    const HostTensor eager = run_kernel(kernel, c);
    const auto& device = test_device();
    const auto allocate = [&](int64_t bytes) { return Memory::on_device(device, bytes).value(); };
    std::vector<Memory> memory;
    std::vector<void*> inputs;
    for (const HostTensor& t : c.inputs) {
      memory.push_back(allocate(static_cast<int64_t>(t.body().size())));
      device->upload(memory.back().data(), t.body().data(), static_cast<int64_t>(t.body().size()));
      inputs.push_back(memory.back().data());
    }
    const int64_t bytes = prepared.problem.outputs[0].bytes();
    const Memory y = allocate(bytes);
    const Memory workspace = allocate(workspace_of(kernel, prepared.problem) + 1);
    void* outputs[] = {y.data()};
    auto op = kernel.prepare(prepared.problem, {inputs, outputs, workspace.data()});
    ASSERT_TRUE(op.ok()) << op.error().to_string();
    const auto replay = device->capture([&](void* stream) { op.value()->enqueue(stream); });
    device->fill(y.data(), 0xFF, bytes);
    replay->launch();
    std::vector<uint8_t> got(static_cast<size_t>(bytes));
    device->download(got.data(), y.data(), bytes);
    device->wait();
    EXPECT_EQ(got, eager.element_bytes()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaBlasLtTest, every_dtype(), dtype_case_name);

}  // namespace
}  // namespace me::testing
