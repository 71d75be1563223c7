// What the cuBLASLt rows of the registry ask of the library: arithmetic, tested on any machine by a
// product in plain loops that reads its operands as the library documents it.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "ops/attention/attention_cublaslt.h"
#include "ops/linear/linear_cublaslt.h"
#include "tests/ops/cublaslt_case.h"

namespace me::testing {
namespace {

// D = act(alpha·op(A)·op(B) + bias), column-major.
void multiply(const LtProduct& p, double alpha, const void* a, const void* b, const void* bias,
              void* d) {
  const auto at = [](const LtMatrix& m, const void* data, bool transpose, int64_t batch, int64_t i,
                     int64_t j) {
    if (transpose) std::swap(i, j);
    EXPECT_TRUE(i < m.rows && j < m.columns);
    return static_cast<double>(load_f32(data, i + j * m.ld + batch * m.batch_stride, m.dtype));
  };
  const int64_t inner = p.transpose_a ? p.a.rows : p.a.columns;
  ASSERT_EQ(inner, p.transpose_b ? p.b.columns : p.b.rows);
  ASSERT_EQ(p.d.rows, p.transpose_a ? p.a.columns : p.a.rows);
  ASSERT_EQ(p.d.columns, p.transpose_b ? p.b.rows : p.b.columns);
  for (const LtMatrix* m : {&p.a, &p.b, &p.d}) ASSERT_GE(m->ld, m->rows);
  for (int64_t n = 0; n < p.batch; ++n) {
    for (int64_t j = 0; j < p.d.columns; ++j) {
      for (int64_t i = 0; i < p.d.rows; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
          sum += at(p.a, a, p.transpose_a, n, i, k) * at(p.b, b, p.transpose_b, n, k, j);
        }
        sum *= alpha;
        if (has_bias(p.epilogue)) sum += load_f32(bias, i, p.bias_dtype);
        const bool relu = p.epilogue == LtEpilogue::kRelu || p.epilogue == LtEpilogue::kReluBias;
        if (relu && sum <= 0) sum = 0;
        store_f64(d, i + j * p.d.ld + n * p.d.batch_stride, p.d.dtype, sum);
      }
    }
  }
}

// ---- operands ----

TEST(LtOperandTest, TakesAStrideOfOneOnEitherSide) {
  const auto as_it_lies = lt_operand(DType::kF32, 3, 5, 1, 4);
  ASSERT_TRUE(as_it_lies);
  EXPECT_FALSE(as_it_lies->transpose);
  EXPECT_EQ(as_it_lies->matrix.ld, 4);
  const auto transposed = lt_operand(DType::kF32, 3, 5, 6, 1);
  ASSERT_TRUE(transposed);
  EXPECT_TRUE(transposed->transpose);
  EXPECT_EQ(transposed->matrix.rows, 5);
  EXPECT_EQ(transposed->matrix.columns, 3);
  EXPECT_EQ(transposed->matrix.ld, 6);
}

TEST(LtOperandTest, RefusesGapsBothWaysAndOverlaps) {
  EXPECT_FALSE(lt_operand(DType::kF32, 3, 5, 2, 6));
  EXPECT_FALSE(lt_operand(DType::kF32, 3, 5, 1, 2));
  EXPECT_FALSE(lt_operand(DType::kF32, 3, 5, 4, 1));
  EXPECT_FALSE(lt_operand(DType::kF32, 3, 5, 0, 1));
  EXPECT_FALSE(lt_operand(DType::kF32, 3, 5, 1, 0));
  EXPECT_FALSE(lt_result(DType::kF32, 3, 5, 5, 1));
}

TEST(LtOperandTest, StrideOfAUnitExtentDoesNotCount) {
  for (const int64_t stride : {0, 1, 7}) {
    const auto row = lt_operand(DType::kF32, 1, 5, stride, 1);
    ASSERT_TRUE(row);
    EXPECT_TRUE(row->transpose);  // contiguous that way
    EXPECT_EQ(row->matrix.ld, 5);
    const auto column = lt_operand(DType::kF32, 5, 1, 1, stride);
    ASSERT_TRUE(column);
    EXPECT_FALSE(column->transpose);
    EXPECT_EQ(column->matrix.ld, 5);
  }
  const auto spread = lt_operand(DType::kF32, 1, 5, 0, 3);
  ASSERT_TRUE(spread);
  EXPECT_EQ(spread->matrix.ld, 3);
  EXPECT_FALSE(lt_operand(DType::kF32, 1, 5, 1, 0));
  ASSERT_TRUE(lt_operand(DType::kF32, 1, 1, 0, 0));
}

// ---- linear ----

void expect_right(const LtLinearCase& linear) {
  const OpCase c = linear.build();
  const PreparedCase prepared = make_problem(c);
  const TensorDesc& y = prepared.problem.outputs[0];
  SCOPED_TRACE(fmt::format("x {}{} n {} nk {} w {} y {}", to_string(linear.x_shape),
                           to_string(linear.x_strides), linear.n, linear.nk,
                           to_string(linear.w_strides), to_string(linear.y_strides)));
  const auto product = linear_lt_product(prepared.problem);
  ASSERT_TRUE(product.ok()) << product.error().message;
  EXPECT_FALSE(lt_refusal(product.value())) << *lt_refusal(product.value());
  const HostTensor out(y.dtype, y.shape, y.strides);
  multiply(product.value(), 1, c.inputs[1].view().data, c.inputs[0].view().data,
           linear.bias ? c.inputs[2].view().data : nullptr, out.view().data);
  EXPECT_TRUE(out.guards_intact());
  const CheckReport report = check_output(out.view(), run_oracle(c));
  EXPECT_TRUE(report.passed) << report.message;
}

TEST(LinearLtTest, EveryLayout) {
  for (const bool nk : {false, true}) {
    for (const bool relu : {false, true}) {
      for (const bool bias : {false, true}) {
        expect_right({.x_shape = {5, 7}, .n = 3, .nk = nk, .relu = relu, .bias = bias});
        expect_right({.x_shape = {2, 3, 7}, .n = 4, .nk = nk, .relu = relu, .bias = bias});
        expect_right({.x_shape = {7}, .n = 4, .nk = nk, .relu = relu, .bias = bias});
        expect_right({.x_shape = {1, 7}, .n = 1, .nk = nk, .relu = relu, .bias = bias});
        expect_right({.x_shape = {5, 1}, .n = 3, .nk = nk, .relu = relu, .bias = bias});
      }
    }
    const int64_t rows = nk ? 4 : 7;
    const int64_t columns = nk ? 7 : 4;
    const LtLinearCase base{.x_shape = {2, 3, 7}, .n = 4, .nk = nk};
    LtLinearCase c = base;
    c.w_strides = {1, rows + 1};
    expect_right(c);
    c.w_strides = {columns + 2, 1};
    expect_right(c);
    c = base;
    c.x_strides = {30, 10, 1};
    expect_right(c);
    c.x_strides = {3, 1, 6};
    expect_right(c);
    c = base;
    c.y_strides = {27, 9, 1};
    expect_right(c);
  }
}

std::string linear_refusal(const LtLinearCase& linear, Placement placement = Placement::kAligned) {
  const OpCase c = linear.build();
  const PreparedCase prepared = make_problem(c, placement);
  const auto product = linear_lt_product(prepared.problem);
  if (!product.ok()) return product.error().message;
  return lt_refusal(product.value()).value_or("");
}

TEST(LinearLtTest, RefusesBeforeAnyCall) {
  const LtLinearCase base{.x_shape = {2, 3, 7}, .n = 4};
  const auto refusal = [&](auto change) {
    LtLinearCase c = base;
    change(c);
    return linear_refusal(c);
  };
  using ::std::string;
  const auto has = [](const string& text, const char* part) {
    EXPECT_NE(text.find(part), string::npos) << text;
  };
  EXPECT_EQ(linear_refusal(base), "");
  has(refusal([](LtLinearCase& c) { c.x_shape = {2, 0}; }), "K = 0");
  has(refusal([](LtLinearCase& c) { c.x_strides = {7, 14, 1}; }), "found x f32[2, 3, 7]");
  has(refusal([](LtLinearCase& c) { c.x_strides = {0, 0, 1}; }), "found x");
  has(refusal([](LtLinearCase& c) { c.x_strides = {42, 14, 2}; }), "found x");
  has(refusal([](LtLinearCase& c) { c.w_strides = {8, 2}; }), "found the weight");
  has(refusal([](LtLinearCase& c) { c.w_strides = {0, 1}; }), "found the weight");
  has(refusal([](LtLinearCase& c) { c.y_strides = {24, 8, 2}; }), "found y");
  has(refusal([](LtLinearCase& c) { c.y_strides = {3, 1, 6}; }), "found y");
  has(refusal([](LtLinearCase& c) { c.bias_strides = {2}; }), "found the bias");
  has(refusal([](LtLinearCase& c) {
        c.dtype = DType::kF16;
        c.bias_dtype = DType::kF16;
        c.output_dtype = "F32";
      }),
      "found a f16 bias for a f32 result");
  has(linear_refusal(base, Placement::kOneElementOff), "found a bias aligned to 4 bytes");
  LtLinearCase no_bias = base;
  no_bias.bias = false;
  EXPECT_EQ(linear_refusal(no_bias, Placement::kOneElementOff), "");
}

TEST(LinearLtTest, RefusesExtentsOfMoreThan32Bits) {
  LtProduct p;
  p.a = {.rows = 8, .columns = 8, .ld = int64_t{1} << 31, .alignment_bytes = 4};
  p.b = p.d = {.rows = 8, .columns = 8, .ld = 8, .alignment_bytes = 4};
  EXPECT_TRUE(lt_refusal(p));
  p.a.ld = (int64_t{1} << 31) - 1;
  EXPECT_FALSE(lt_refusal(p));
  p.batch = 65536;
  EXPECT_TRUE(lt_refusal(p));
}

// ---- attention ----

PreparedCase attention_problem(const OpCase& c) {
  PreparedCase prepared = make_problem(c);
  prepared.problem.device.memory_bytes = int64_t{1} << 34;
  return prepared;
}

// Runs the plan; returns how many launches the two products take.
std::pair<size_t, size_t> expect_right(const OpCase& c) {
  const PreparedCase prepared = attention_problem(c);
  const auto plan = attention_lt_plan(prepared.problem);
  EXPECT_TRUE(plan.ok()) << plan.error().message;
  if (!plan.ok()) return {0, 0};
  const AttentionLtPlan& p = plan.value();
  const TensorDesc& y = prepared.problem.outputs[0];
  const HostTensor out(y.dtype, y.shape, y.strides);
  const auto ld = static_cast<size_t>(p.scores_ld);
  std::vector<float> scores(static_cast<size_t>(p.scores_rows) * ld, kNaN);
  EXPECT_EQ(p.scores_bytes, static_cast<int64_t>(scores.size() * sizeof(float)));
  const auto start = [](const void* data, int64_t offset) {
    return static_cast<float*>(const_cast<void*>(data)) + offset;
  };
  for (const LtLaunches::Offsets& at : p.scores.at) {
    multiply(p.scores.product, p.sizes.scale, start(c.inputs[1].view().data, at.a),
             start(c.inputs[0].view().data, at.b), nullptr, scores.data() + at.d);
  }
  for (size_t row = 0; row < static_cast<size_t>(p.scores_rows); ++row) {
    float* const s = scores.data() + row * ld;
    const auto n =
        static_cast<size_t>(p.sizes.mask.visible_keys(static_cast<int64_t>(row) % p.sizes.q_len));
    double max = -kInf;
    double sum = 0;
    for (size_t j = 0; j < n; ++j) max = std::max(max, double{s[j]});
    for (size_t j = 0; j < n; ++j) sum += std::exp(double{s[j]} - max);
    for (size_t j = 0; j < static_cast<size_t>(p.sizes.kv_len); ++j) {
      s[j] = j < n ? static_cast<float>(std::exp(double{s[j]} - max) / sum) : 0;
    }
  }
  for (const LtLaunches::Offsets& at : p.values.at) {
    multiply(p.values.product, 1, start(c.inputs[2].view().data, at.a), scores.data() + at.b,
             nullptr, start(out.view().data, at.d));
  }
  EXPECT_TRUE(out.guards_intact());
  const CheckReport report = check_output(out.view(), run_oracle(c));
  EXPECT_TRUE(report.passed) << report.message;
  return {p.scores.at.size(), p.values.at.size()};
}

using Launches = std::pair<size_t, size_t>;

TEST(AttentionLtTest, DenseIsOneLaunchEach) {
  for (const bool causal : {false, true}) {
    for (const int64_t kv_heads : {1, 2, 6}) {
      EXPECT_EQ(expect_right(LtAttentionCase{.batch = 2,
                                             .heads = 6,
                                             .kv_heads = kv_heads,
                                             .q_len = 5,
                                             .kv_len = 7,
                                             .head_dim = 3,
                                             .value_dim = 4,
                                             .causal = causal}
                                 .build()),
                Launches(1, 1));
    }
  }
}

TEST(AttentionLtTest, SequenceMajorIsALaunchPerBatchEntryOrHead) {
  LtAttentionCase c{.batch = 1,
                    .heads = 3,
                    .kv_heads = 3,
                    .q_len = 5,
                    .kv_len = 7,
                    .head_dim = 3,
                    .value_dim = 4,
                    .sequence_major = true};
  EXPECT_EQ(expect_right(c.build()), Launches(1, 1));
  c.batch = 2;
  EXPECT_EQ(expect_right(c.build()), Launches(2, 2));
  c.batch = 5;
  EXPECT_EQ(expect_right(c.build()), Launches(3, 3));
}

TEST(AttentionLtTest, SequenceMajorGroupsAreALaunchPerMember) {
  LtAttentionCase c{.batch = 1,
                    .heads = 6,
                    .kv_heads = 3,
                    .q_len = 5,
                    .kv_len = 7,
                    .head_dim = 3,
                    .value_dim = 4,
                    .sequence_major = true};
  EXPECT_EQ(expect_right(c.build()), Launches(2, 2));
  c.batch = 2;
  EXPECT_EQ(expect_right(c.build()), Launches(4, 4));
}

TEST(AttentionLtTest, OneKvHeadIsRepeatedByAStrideOfZero) {
  const LtAttentionCase c{.batch = 1,
                          .heads = 4,
                          .kv_heads = 1,
                          .q_len = 5,
                          .kv_len = 7,
                          .head_dim = 3,
                          .value_dim = 4,
                          .sequence_major = true};
  EXPECT_EQ(expect_right(c.build()), Launches(1, 1));
}

TEST(AttentionLtTest, AGroupsSingleQueriesAreOneProduct) {
  for (const bool sequence_major : {false, true}) {
    const LtAttentionCase c{.batch = 1,
                            .heads = 6,
                            .kv_heads = 3,
                            .q_len = 1,
                            .kv_len = 9,
                            .head_dim = 3,
                            .value_dim = 4,
                            .sequence_major = sequence_major};
    EXPECT_EQ(expect_right(c.build()), Launches(1, 1));
  }
}

TEST(AttentionLtTest, UnitExtents) {
  expect_right(LtAttentionCase{}.build());
  expect_right(LtAttentionCase{.heads = 2, .q_len = 3}.build());
  expect_right(LtAttentionCase{.heads = 2, .kv_heads = 2, .kv_len = 5}.build());
  expect_right(LtAttentionCase{.heads = 2, .kv_len = 5, .head_dim = 4}.build());
}

TEST(AttentionLtTest, RowsThatSeeNoKeyAreZero) {
  expect_right(
      LtAttentionCase{.q_len = 9, .kv_len = 4, .head_dim = 3, .value_dim = 2, .causal = true}
          .build());
}

TEST(AttentionLtTest, TransposedInputsAndGappedOutput) {
  OpCase c = LtAttentionCase{.batch = 2,
                             .heads = 2,
                             .kv_heads = 2,
                             .q_len = 5,
                             .kv_len = 7,
                             .head_dim = 3,
                             .value_dim = 4}
                 .build();
  c.inputs[0] = HostTensor(DType::kF32, {2, 2, 5, 3}, {30, 15, 1, 5}).fill_normal(1);
  c.inputs[1] = HostTensor(DType::kF32, {2, 2, 7, 3}, {44, 22, 1, 7}).fill_normal(2);
  c.inputs[2] = HostTensor(DType::kF32, {2, 2, 7, 4}, {80, 40, 5, 1}).fill_normal(3);
  c.output_strides = {100, 50, 6, 1};
  EXPECT_EQ(expect_right(c), Launches(1, 1));
}

TEST(AttentionLtTest, RefusesBeforeAnyCall) {
  const LtAttentionCase base{.batch = 2,
                             .heads = 2,
                             .kv_heads = 2,
                             .q_len = 5,
                             .kv_len = 7,
                             .head_dim = 3,
                             .value_dim = 4};
  const auto refusal = [](const OpCase& c, int64_t memory_bytes = int64_t{1} << 34) {
    PreparedCase prepared = make_problem(c);
    prepared.problem.device.memory_bytes = memory_bytes;
    const auto plan = attention_lt_plan(prepared.problem);
    return plan.ok() ? "" : plan.error().message;
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  EXPECT_EQ(refusal(base.build()), "");
  has(refusal(base.build(), 4 * (2 * 2 * 5 * 8 * 4) - 1), "found scores of 640 bytes");
  EXPECT_EQ(refusal(base.build(), 4 * (2 * 2 * 5 * 8 * 4)), "");
  LtAttentionCase c = base;
  c.kv_len = 0;
  has(refusal(c.build()), "kv_len = 0");
  OpCase q = base.build();
  q.inputs[0] = HostTensor(DType::kF32, {2, 2, 5, 3}, {60, 30, 6, 2});
  has(refusal(q), "found q with strides");
  OpCase k = base.build();
  k.inputs[1] = HostTensor(DType::kF32, {2, 2, 7, 3}, {0, 0, 0, 1});
  has(refusal(k), "found k with strides");
  OpCase o = base.build();
  o.output_strides = {40, 20, 1, 5};
  has(refusal(o), "found the output with strides");
  c = base;
  c.batch = c.heads = c.kv_heads = 65;
  c.sequence_major = true;
  has(refusal(c.build()), "65 launches");
}

TEST(AttentionLtTest, AlignmentIsThatOfEveryMatrix) {
  // 7 x 3 fp32: heads start at multiples of 84 bytes, which is 4 of alignment.
  const OpCase c =
      LtAttentionCase{.heads = 2, .kv_heads = 2, .q_len = 4, .kv_len = 7, .head_dim = 3}.build();
  const PreparedCase prepared = attention_problem(c);
  const auto plan = attention_lt_plan(prepared.problem);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan.value().scores.product.a.alignment_bytes, 4);
  EXPECT_EQ(plan.value().scores.product.b.alignment_bytes, 16);   // 48 bytes apart
  EXPECT_EQ(plan.value().scores.product.d.alignment_bytes, 128);  // 4 rows of 8
}

}  // namespace
}  // namespace me::testing
