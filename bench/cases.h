// What is measured: the shapes, by op. bench/peers/ reads the same table from
// `ops_bench --list-cases=json`.
#pragma once

#include <string>
#include <vector>

#include "ops/base/op.h"

namespace me::bench {

struct CaseSpec {
  std::string op;
  std::string name;  // without the op and the type
  AttrMap attrs = {};
  std::vector<Dims> shapes = {};   // of the inputs
  std::vector<Dims> strides = {};  // dense where empty
  bool constant_weights = true;    // inputs after the first are weights
  std::vector<DType> dtypes = {DType::kF32, DType::kF16, DType::kBF16};
};

// Y = relu(X·W + b): m x n outputs, W as [N, K] or [K, N].
CaseSpec linear_case(int64_t m, int64_t n, int64_t k, bool nk);

// Shapes that a CPU runs in milliseconds, or those that keep a large GPU busy.
std::vector<CaseSpec> cases_for(Backend backend);

// "softmax/rows_4096x1024/bf16": what a kernel's name follows in the names of the benchmarks.
std::string key_of(const CaseSpec& spec, DType dtype);

}  // namespace me::bench
