// Problems for the tests of the cuBLASLt rows, in words; build() makes random inputs for them.
#pragma once

#include <string>
#include <utility>

#include "tests/ops/kernel_test.h"

namespace me::testing {

struct LtLinearCase {
  Dims x_shape;
  int64_t n = 1;
  bool nk = false;
  bool relu = false;
  bool bias = true;
  Dims x_strides = {}, w_strides = {}, bias_strides = {}, y_strides = {};  // dense where empty
  DType dtype = DType::kF32;
  DType bias_dtype = DType::kF32;
  std::string output_dtype = {};
  float scale = 1;

  OpCase build() const {
    const auto tensor = [](DType type, const Dims& shape, const Dims& strides) {
      return strides.rank() > 0 ? HostTensor(type, shape, strides) : HostTensor(type, shape);
    };
    const int64_t k = x_shape.back();
    OpCase c{"linear", {}, {}, 1, y_strides};
    c.attrs["weight_layout"] = std::string(nk ? "NK" : "KN");
    c.attrs["activation"] = std::string(relu ? "RELU" : "NONE");
    if (!output_dtype.empty()) c.attrs["output_dtype"] = output_dtype;
    c.inputs.push_back(tensor(dtype, x_shape, x_strides).fill_normal(1, scale));
    c.inputs.push_back(tensor(dtype, nk ? Dims{n, k} : Dims{k, n}, w_strides).fill_normal(2));
    if (bias) c.inputs.push_back(tensor(bias_dtype, {n}, bias_strides).fill_normal(3));
    return c;
  }
};

struct LtAttentionCase {
  int64_t batch = 1, heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 1, value_dim = 1;
  bool sequence_major = false;  // [B, S, H, D] in memory
  bool causal = false;
  DType dtype = DType::kF32;

  // Strides of [batch, h, length, dim], or none.
  Dims strides(int64_t h, int64_t length, int64_t dim) const {
    return sequence_major ? Dims{length * h * dim, dim, h * dim, 1} : Dims{};
  }
  OpCase build(float scale = 0.5f) const {
    const auto tensor = [&](int64_t h, int64_t length, int64_t dim, uint64_t seed) {
      const Dims shape{batch, h, length, dim};
      const Dims s = strides(h, length, dim);
      HostTensor t = s.rank() > 0 ? HostTensor(dtype, shape, s) : HostTensor(dtype, shape);
      return std::move(t.fill_normal(seed, scale));
    };
    OpCase c{"attention", {}, {}, 1, strides(heads, q_len, value_dim)};
    c.attrs["causal"] = causal;
    c.inputs = {tensor(heads, q_len, head_dim, 1), tensor(kv_heads, kv_len, head_dim, 2),
                tensor(kv_heads, kv_len, value_dim, 3)};
    return c;
  }
};

}  // namespace me::testing
