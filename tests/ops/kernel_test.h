// The harness of every kernel test: random inputs, poisoned and guarded outputs, the FP64 oracle as
// the judge, every row of the registry that takes the problem.
//
// The same tests run for every backend: the environment variable ME_TEST_BACKEND, cpu (the default)
// or cuda, says for which. In CTest all tests of a program on CUDA are one, cuda.PROGRAM.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/base/check.h"
#include "ops/base/kernel.h"
#include "ops/device/device.h"

namespace me::testing {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// For INSTANTIATE_TEST_SUITE_P: every element type, and the names of such cases.
inline auto every_dtype() { return ::testing::Values(DType::kF32, DType::kF16, DType::kBF16); }
inline std::string dtype_case_name(const ::testing::TestParamInfo<DType>& param) {
  return std::string(name_of(param.param));
}

Backend test_backend();
// Why the backend's device is not there, or "": the tests' main function then skips every test.
std::string missing_device();
// The device that the tests run on.
const std::shared_ptr<Device>& test_device();
// Whether the kernel is the test backend's and held to the oracle: baselines have their own tests.
bool is_under_test(const KernelEntry& kernel);

// A strided tensor with its storage. Every byte that belongs to no element (guards before and
// after, gaps between rows) starts as 0xFF and must still be 0xFF afterwards; elements start as
// 0xFF too, which is NaN in every type.
class HostTensor {
 public:
  // Dense where `strides` is left out.
  HostTensor(DType dtype, const Dims& shape);
  HostTensor(DType dtype, const Dims& shape, const Dims& strides);

  const TensorDesc& desc() const { return desc_; }
  TensorView view() const;
  float get(int64_t linear) const;        // element by row-major index
  void set(int64_t linear, float value);  // rounded to the type

  // Normal(0, scale), and one element in 64 ten times as large.
  HostTensor& fill_normal(uint64_t seed, float scale = 1.0f);
  HostTensor& fill(const std::vector<float>& values);  // row-major, one per element

  // True while nothing has been written outside the elements.
  bool guards_intact() const;
  std::vector<uint8_t> element_bytes() const;  // row-major

  static constexpr int64_t kGuardBytes = 256;
  // Everything, guards included, and the part from the first element to the last.
  std::span<uint8_t> storage() { return storage_; }
  std::span<const uint8_t> body() const {
    return std::span(storage_).subspan(kGuardBytes, storage_.size() - 2 * kGuardBytes);
  }

 private:
  TensorDesc desc_;
  std::vector<uint8_t> storage_;
  std::vector<bool> is_element_;  // per byte of storage_
};

struct OpCase {
  std::string op;
  AttrMap attrs;
  std::vector<HostTensor> inputs;
  int threads = 2;
  Dims output_strides = {};       // dense where empty
  bool constant_weights = false;  // inputs after the first are weights, final when preparing
  std::string config = {};        // Problem::config
};

// The case as a problem. Fails the test (and aborts it by an exception) where the op refuses it.
struct PreparedCase {
  std::unique_ptr<Attrs> attrs;
  Problem problem;
};
// Where element 0 of every input and output lies: on a multiple of 256 bytes, or one element after
// that, which takes the vector loads from a kernel.
enum class Placement : uint8_t { kAligned, kOneElementOff };
PreparedCase make_problem(const OpCase& c, Placement placement = Placement::kAligned);
// A problem with dense outputs, everything aligned, on the test device.
PreparedCase make_problem(const std::string& op, const AttrMap& attrs,
                          const std::vector<TensorDesc>& inputs);

// Runs one kernel on the test device. Fails the test where it cannot be prepared or writes outside
// its output. Inputs lie in allocations of exactly their size, so that a sanitizer sees a read past
// them.
HostTensor run_kernel(const KernelEntry& kernel, const OpCase& c,
                      Placement placement = Placement::kAligned);

// The oracle's answer.
OracleOutput run_oracle(const OpCase& c);

// Every kernel of the registry for the test's backend that supports the case, in both placements,
// run twice: within its bound of the oracle, the same bits both times, nothing written outside the
// output. At least one kernel has to support it, unless this build leaves all kernels of the op out
// (then the test is skipped).
void expect_kernels_match_oracle(const OpCase& c);

// The same for each configuration of every kernel that has several; the number of them. Kernels
// without take no part.
int expect_configs_match_oracle(OpCase c);

// The error of inferring the case's output, or "" where the op accepts it.
std::string infer_error(std::string_view op, const AttrMap& attrs,
                        const std::vector<TensorType>& inputs);

}  // namespace me::testing
