// Linear with more elements than 32 bits count: on a device, against the oracle in the places that
// tell.
#include <algorithm>
#include <set>
#include <vector>

#include "ops/linear/linear.h"
#include "ops/registry.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

// An operand of one product that has more than 2^31 elements.
struct LargeCase {
  const char* name;
  DType dtype;
  int64_t m, n, k;
  bool nk;
};

// The elements of a tensor that only the device holds: random ones, again and again. The period is
// odd, so that rows differ.
class RepeatedBlock {
 public:
  RepeatedBlock(DType dtype, uint64_t seed) : block_(dtype, {kPeriod}) { block_.fill_normal(seed); }
  float at(int64_t i) const { return block_.get(i % kPeriod); }
  void upload(void* to, int64_t count) const {
    const int64_t item = size_of(block_.desc().dtype);
    for (int64_t i = 0; i < count; i += kPeriod) {
      test_device()->upload(static_cast<std::byte*>(to) + i * item, block_.body().data(),
                            std::min(kPeriod, count - i) * item);
    }
  }

 private:
  static constexpr int64_t kPeriod = (int64_t{1} << 20) + 1;
  HostTensor block_;
};

// The first and the last of `count` lines, and those around where their elements number 2^30 (2^31
// bytes of 16 bits), 2^31 and 2^32.
std::vector<int64_t> telling_lines(int64_t count, int64_t length) {
  std::set<int64_t> lines{0, count / 3, count - 1};
  for (int64_t bits : {30, 31, 32}) {
    const int64_t line = (int64_t{1} << bits) / length;
    for (int64_t near : {line - 1, line, line + 1}) {
      if (near >= 0 && near < count) lines.insert(near);
    }
  }
  return {lines.begin(), lines.end()};
}

class LargeLinearTest : public ::testing::TestWithParam<LargeCase> {};

TEST_P(LargeLinearTest, MatchesTheOracleWhereItTells) {
  if (test_backend() == Backend::kCpu) GTEST_SKIP() << "takes minutes on a CPU";
  const LargeCase c = GetParam();
  const Dims w_shape = c.nk ? Dims{c.n, c.k} : Dims{c.k, c.n};
  const int64_t item = size_of(c.dtype);
  if (test_device()->free_bytes() < (c.m * c.k + c.k * c.n + c.m * c.n) * item + (1 << 30)) {
    GTEST_SKIP() << "the device's memory is too small";
  }
  const RepeatedBlock x_values(c.dtype, 1), w_values(c.dtype, 2), bias_values(c.dtype, 3);
  const AttrMap attrs{{"weight_layout", std::string(c.nk ? "NK" : "KN")}};

  // The same product of a few rows and columns.
  const std::vector<int64_t> rows = telling_lines(c.m, c.m * c.k > c.m * c.n ? c.k : c.n);
  const std::vector<int64_t> columns = telling_lines(c.n, c.nk ? c.k : 1);
  const auto row_count = static_cast<int64_t>(rows.size());
  const auto column_count = static_cast<int64_t>(columns.size());
  HostTensor x(c.dtype, {row_count, c.k}), bias(c.dtype, {column_count});
  HostTensor w(c.dtype, c.nk ? Dims{column_count, c.k} : Dims{c.k, column_count});
  for (int64_t r = 0; r < row_count; ++r) {
    for (int64_t k = 0; k < c.k; ++k) {
      x.set(r * c.k + k, x_values.at(rows[static_cast<size_t>(r)] * c.k + k));
    }
  }
  for (int64_t i = 0; i < column_count; ++i) {
    const int64_t n = columns[static_cast<size_t>(i)];
    bias.set(i, bias_values.at(n));
    for (int64_t k = 0; k < c.k; ++k) {
      w.set(c.nk ? i * c.k + k : k * column_count + i,
            w_values.at(c.nk ? n * c.k + k : k * c.n + n));
    }
  }
  const OracleOutput want = run_oracle({"linear", attrs, {x, w, bias}});

  const auto on_device = [](int64_t bytes) {
    return Memory::on_device(test_device(), bytes + HostTensor::kGuardBytes).value();
  };
  const Memory x_memory = on_device(c.m * c.k * item), w_memory = on_device(c.k * c.n * item);
  const Memory bias_memory = on_device(c.n * item), y_memory = on_device(c.m * c.n * item);
  x_values.upload(x_memory.data(), c.m * c.k);
  w_values.upload(w_memory.data(), c.k * c.n);
  bias_values.upload(bias_memory.data(), c.n);
  const PreparedCase prepared =
      make_problem("linear", attrs,
                   {dense(c.dtype, {c.m, c.k}), dense(c.dtype, w_shape), dense(c.dtype, {c.n})});
  int ran = 0;
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->op != "linear" || !is_under_test(*kernel)) continue;
    if (!kernel->supports(prepared.problem).ok) continue;
    SCOPED_TRACE(kernel->name);
    ++ran;
    const Memory workspace = on_device(workspace_of(*kernel, prepared.problem));
    test_device()->fill(y_memory.data(), 0xFF, y_memory.bytes());
    void* inputs[] = {x_memory.data(), w_memory.data(), bias_memory.data()};
    void* outputs[] = {y_memory.data()};
    auto op = kernel->prepare(prepared.problem, {inputs, outputs, workspace.data()});
    ASSERT_TRUE(op.ok()) << op.error().to_string();
    op.value()->enqueue(test_device()->stream());
    HostTensor got(c.dtype, {row_count, column_count});
    HostTensor row(c.dtype, {c.n});
    for (int64_t r = 0; r < row_count; ++r) {
      test_device()->download(
          row.view().data, y_memory.data() + rows[static_cast<size_t>(r)] * c.n * item, c.n * item);
      test_device()->wait();
      for (int64_t i = 0; i < column_count; ++i) {
        got.set(r * column_count + i, row.get(columns[static_cast<size_t>(i)]));
      }
    }
    const CheckReport report = check_output(got.view(), want);
    EXPECT_TRUE(report.passed) << report.failures
                               << " elements outside their bound; worst: " << report.message;
    std::vector<uint8_t> guard(HostTensor::kGuardBytes);
    test_device()->download(guard.data(), y_memory.data() + c.m * c.n * item,
                            HostTensor::kGuardBytes);
    test_device()->wait();
    EXPECT_EQ(guard, std::vector<uint8_t>(HostTensor::kGuardBytes, 0xFF)) << "written past Y";
  }
  EXPECT_GT(ran, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, LargeLinearTest,
    ::testing::Values(LargeCase{"X", DType::kBF16, 523400, 16, 4104, true},
                      LargeCase{"XOfOddRows", DType::kBF16, 523400, 16, 4103, true},
                      LargeCase{"WAlongK", DType::kBF16, 3, 523400, 4104, true},
                      LargeCase{"WAlongN", DType::kF16, 3, 523400, 4104, false},
                      LargeCase{"Y", DType::kBF16, 65600, 32776, 72, false},
                      LargeCase{"XInF32", DType::kF32, 523400, 16, 4104, true},
                      LargeCase{"YInF32", DType::kF32, 65600, 32776, 16, true}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace me::testing
