#include "bench/cases.h"

#include <fmt/format.h>

namespace me::bench {
namespace {

const std::vector<DType> kHalf = {DType::kBF16, DType::kF16};

CaseSpec attention_case(int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len,
                        int64_t kv_len, int64_t dim) {
  const std::string kv = kv_heads == heads ? "" : fmt::format("_kv{}", kv_heads);
  const Dims keys = {batch, kv_heads, kv_len, dim};
  return {.op = "attention",
          .name = fmt::format("b{}_h{}{}_q{}_k{}_d{}", batch, heads, kv, q_len, kv_len, dim),
          .attrs = {{"causal", true}},
          .shapes = {{batch, heads, q_len, dim}, keys, keys},
          .constant_weights = false};
}

CaseSpec rows_case(const std::string& op, int64_t rows, int64_t columns) {
  CaseSpec spec{.op = op,
                .name = fmt::format("rows_{}x{}", rows, columns),
                .shapes = {{rows, columns}},
                .constant_weights = false};
  if (op == "softmax_grad") spec.shapes.push_back(spec.shapes[0]);
  return spec;
}

CaseSpec transposed_softmax(int64_t side) {
  return {.op = "softmax",
          .name = fmt::format("transposed_{}x{}", side, side),
          .shapes = {{side, side}},
          .strides = {{1, side}}};
}

CaseSpec with(CaseSpec spec, std::vector<DType> dtypes) {
  spec.dtypes = std::move(dtypes);
  return spec;
}

std::vector<Dim> numbers(const Dims& sizes) {
  std::vector<Dim> dims;
  for (int64_t size : sizes) dims.push_back({size});
  return dims;
}

// Ops that only move memory, and addition.
std::vector<CaseSpec> moving_cases(int64_t side) {
  const std::string square = fmt::format("{}x{}", side, side);
  return {
      {.op = "add",
       .name = square,
       .shapes = {{side, side}, {side, side}},
       .constant_weights = false},
      {.op = "transpose",
       .name = fmt::format("{}x1000", side),
       .attrs = {{"permutation", std::vector<int64_t>{1, 0}}},
       .shapes = {{side, 1000}}},
      {.op = "transpose",
       .name = fmt::format("heads_{}x16x64", side / 2),
       .attrs = {{"permutation", std::vector<int64_t>{1, 0, 2}}},
       .shapes = {{side / 2, 16, 64}}},
      {.op = "reshape",
       .name = "of_transposed_" + square,
       .attrs = {{"dims", numbers({-1})}},
       .shapes = {{side, side}},
       .strides = {{1, side}}},
      {.op = "slice",
       .name = "columns_" + square,
       .attrs = {{"axis", int64_t{1}}, {"start", side / 4}, {"end", side / 4 * 3}},
       .shapes = {{side, side}}},
      {.op = "broadcast",
       .name = "rows_" + square,
       .attrs = {{"dims", numbers({side, side})}},
       .shapes = {{side}}},
  };
}

std::vector<CaseSpec> cpu_cases() {
  std::vector<CaseSpec> cases;
  for (bool nk : {false, true}) {
    cases.push_back(linear_case(1, 512, 784, nk));
    cases.push_back(linear_case(8, 1024, 1024, nk));
    cases.push_back(linear_case(64, 256, 784, nk));
    cases.push_back(linear_case(512, 512, 512, nk));
    cases.push_back(linear_case(1024, 1024, 1024, nk));
    cases.push_back(linear_case(333, 777, 1000, nk));
  }
  cases.push_back(attention_case(1, 8, 8, 512, 512, 64));
  cases.push_back(attention_case(1, 4, 4, 2048, 2048, 64));
  cases.push_back(attention_case(1, 32, 8, 1, 4096, 128));
  cases.push_back(rows_case("softmax", 4096, 1024));
  cases.push_back(rows_case("softmax", 4, 32769));
  cases.push_back(transposed_softmax(1024));
  cases.push_back(rows_case("softmax_grad", 4096, 1024));
  for (CaseSpec& spec : moving_cases(1024)) cases.push_back(std::move(spec));
  return cases;
}

void add_linear(std::vector<CaseSpec>& cases) {
  constexpr int64_t kShapes[][3] = {
      {8192, 8192, 8192}, {4096, 4096, 4096}, {4096, 11008, 4096}, {16384, 4096, 1024},
      {2048, 2048, 2048}, {1024, 1024, 1024}, {512, 512, 512},     {4096, 4096, 128},
      {256, 1000, 784},   {128, 4096, 4096},  {64, 4096, 4096},    {16, 4096, 4096},
      {1, 4096, 4096},    {8, 1024, 1024},    {1, 1024, 1024},     {333, 777, 1000},
  };
  constexpr int64_t kFloatShapes[][3] = {
      {4096, 4096, 4096}, {1024, 1024, 1024}, {64, 4096, 4096}, {1, 4096, 4096}, {333, 777, 1000}};
  for (bool nk : {true, false}) {
    for (const auto& [m, n, k] : kShapes) cases.push_back(with(linear_case(m, n, k, nk), kHalf));
  }
  for (bool nk : {true, false}) {
    for (const auto& [m, n, k] : kFloatShapes) {
      cases.push_back(with(linear_case(m, n, k, nk), {DType::kF32}));
      CaseSpec tf32 = linear_case(m, n, k, nk);
      tf32.name += "_tf32";
      tf32.attrs["allow_tf32"] = true;
      cases.push_back(with(std::move(tf32), {DType::kF32}));
    }
  }
}

void add_attention(std::vector<CaseSpec>& cases) {
  constexpr int64_t kSequences[][4] = {
      // batch, heads, length, head_dim
      {16, 16, 1024, 128}, {4, 16, 4096, 128}, {2, 16, 8192, 128}, {1, 16, 16384, 128},
      {32, 16, 512, 64},   {4, 16, 4096, 64},  {1, 16, 16384, 64}, {1, 8, 1024, 64},
      {1, 8, 128, 64},     {2, 8, 8192, 256},
  };
  constexpr int64_t kDecoding[][4] = {
      // batch, heads, kv_heads, kv_len
      {1, 32, 32, 8192}, {16, 32, 32, 4096}, {1, 8, 8, 65536},
      {16, 32, 8, 4096}, {1, 32, 8, 8192},   {1, 64, 8, 131072},
  };
  for (const auto& [batch, heads, length, dim] : kSequences) {
    cases.push_back(with(attention_case(batch, heads, heads, length, length, dim), kHalf));
  }
  for (const auto& [batch, heads, kv_heads, length] : kDecoding) {
    cases.push_back(with(attention_case(batch, heads, kv_heads, 1, length, 128), kHalf));
  }
}

void add_softmax(std::vector<CaseSpec>& cases) {
  const auto add = [&](const char* op, DType dtype, std::initializer_list<Dims> shapes) {
    for (const Dims& shape : shapes) {
      cases.push_back(with(rows_case(op, shape[0], shape[1]), {dtype}));
    }
  };
  add("softmax", DType::kBF16,
      {{32768, 1024},
       {32768, 4096},
       {16384, 8192},
       {8192, 32768},
       {4096, 65536},
       {2048, 131072},
       {1024, 262144},
       {4, 32769},
       {1, 1048576},
       {128, 128}});
  cases.push_back(with(transposed_softmax(8192), {DType::kBF16}));
  add("softmax", DType::kF16, {{32768, 4096}});
  add("softmax", DType::kF32, {{32768, 4096}, {4096, 65536}, {1024, 262144}});
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    add("softmax_grad", dtype, {{32768, 1024}, {32768, 4096}, {8192, 32768}, {2048, 131072}});
  }
  add("softmax_grad", DType::kBF16, {{4, 32769}, {1, 1048576}, {128, 128}});
}

std::vector<CaseSpec> cuda_cases() {
  std::vector<CaseSpec> cases;
  add_linear(cases);
  add_attention(cases);
  add_softmax(cases);
  for (CaseSpec& spec : moving_cases(4096)) {
    cases.push_back(with(std::move(spec), {DType::kBF16}));
  }
  return cases;
}

}  // namespace

CaseSpec linear_case(int64_t m, int64_t n, int64_t k, bool nk) {
  return {.op = "linear",
          .name = fmt::format("{}x{}x{}/{}", m, n, k, nk ? "NK" : "KN"),
          .attrs = {{"weight_layout", std::string(nk ? "NK" : "KN")},
                    {"activation", std::string("RELU")}},
          .shapes = {{m, k}, nk ? Dims{n, k} : Dims{k, n}, {n}}};
}

std::vector<CaseSpec> cases_for(Backend backend) {
  return backend == Backend::kCuda ? cuda_cases() : cpu_cases();
}

std::string key_of(const CaseSpec& spec, DType dtype) {
  return fmt::format("{}/{}/{}", spec.op, spec.name, name_of(dtype));
}

}  // namespace me::bench
