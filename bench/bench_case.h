// A problem with random inputs, ready to be checked against the oracle and then timed.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/base/kernel.h"

namespace me::bench {

// How a large case is checked: index r of the output's axis depends only on index r / divisor of
// that axis of some inputs, so that a few indices stand for all. Inputs not listed enter whole.
struct SampledAxis {
  int axis = -1;  // -1: the whole output is checked
  struct Input {
    size_t index = 0;
    int64_t divisor = 1;
  };
  std::vector<Input> inputs = {};
};

struct CaseSpec {
  std::string op;
  std::string name;  // without the op, the kernel and the type
  AttrMap attrs = {};
  std::vector<Dims> shapes = {};   // of the inputs
  std::vector<Dims> strides = {};  // dense where empty
  SampledAxis sampled = {};
  bool constant_weights = true;  // inputs after the first are weights
};

struct FreeDelete {
  void operator()(void* p) const;
};
using Memory = std::unique_ptr<void, FreeDelete>;

class BenchCase {
 public:
  // Inputs are normal, with one element in 64 ten times as large.
  BenchCase(const CaseSpec& spec, DType dtype, int threads);

  const Problem& problem() const { return problem_; }
  void* input(size_t i) const { return inputs_[i].get(); }
  void* output() const { return output_.get(); }

  // Binds a kernel that supports the problem, with a workspace of its own.
  Result<std::unique_ptr<PreparedOp>> prepare(const KernelEntry& kernel);

  // Judges what the output holds now: "" where it passes, or one line on the worst element.
  std::string check() const;
  // Fills the output with NaN.
  void poison();

 private:
  std::string check_at(const std::vector<TensorView>& inputs, const TensorView& output) const;

  SampledAxis sampled_;
  std::unique_ptr<Attrs> attrs_;
  Problem problem_;
  std::vector<Memory> inputs_;
  Memory output_;
  Memory workspace_;
};

}  // namespace me::bench
