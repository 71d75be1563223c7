#include <algorithm>
#include <random>

#include "ops/registry.h"
#include "ops/view/view.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

std::vector<Dim> numbers(std::initializer_list<int64_t> sizes) {
  std::vector<Dim> dims;
  for (int64_t size : sizes) dims.push_back({size});
  return dims;
}
std::vector<Dim> numbers(const Dims& sizes) {
  std::vector<Dim> dims;
  for (int64_t size : sizes) dims.push_back({size});
  return dims;
}

AttrMap slice_attrs(int64_t axis, int64_t start, std::optional<int64_t> end, int64_t step) {
  AttrMap attrs{{"axis", axis}, {"start", start}, {"step", step}};
  if (end) attrs["end"] = *end;
  return attrs;
}

// The output's shape, or the error in one line.
std::string inferred(std::string_view op, const AttrMap& attrs, const Dims& shape,
                     const Symbols& symbols = {}) {
  const OpDef& def = *find_op(op);
  const auto parsed = def.parse(attrs);
  if (!parsed.ok()) return parsed.error().to_string();
  const std::vector<TensorType> inputs{{DType::kF16, shape}};
  const auto types = def.infer(*parsed.value(), inputs, symbols);
  if (!types.ok()) return types.error().to_string();
  EXPECT_EQ(types.value()[0].dtype, DType::kF16);
  return to_string(types.value()[0].shape);
}

// The view's strides and offset as "[3, 1] +2", or "copy".
std::string placed(std::string_view op, const AttrMap& attrs, const Dims& shape,
                   const Dims& strides) {
  HostTensor x(DType::kF32, shape, strides);
  const PreparedCase c = make_problem({std::string(op), attrs, {x}});
  const auto view = c.problem.op->view(*c.attrs, x.desc(), c.problem.outputs[0].shape);
  if (!view) return "copy";
  EXPECT_EQ(view->desc.shape, c.problem.outputs[0].shape);
  return to_string(view->desc.strides) + " +" + std::to_string(view->offset);
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// ---- reshape ----

TEST(ReshapeInferTest, MinusOneIsWhatIsLeft) {
  EXPECT_EQ(inferred("reshape", {{"dims", numbers({2, -1})}}, {3, 4}), "[2, 6]");
  EXPECT_EQ(inferred("reshape", {{"dims", numbers({-1})}}, {}), "[1]");
  EXPECT_EQ(inferred("reshape", {{"dims", numbers({3, -1})}}, {0, 4}), "[3, 0]");
}

TEST(ReshapeInferTest, SymbolsResolveAndUnknownOnesStayUnknown) {
  const AttrMap attrs{{"dims", std::vector<Dim>{{.symbol = "batch"}, {-1}, {4}}}};
  EXPECT_EQ(inferred("reshape", attrs, {2, 12}, {{"batch", 2}}), "[2, 3, 4]");
  EXPECT_EQ(inferred("reshape", attrs, {2, 12}), "[?, ?, 4]");
  EXPECT_EQ(inferred("reshape", attrs, {kUnknownDim, 12}, {{"batch", 2}}), "[2, ?, 4]");
  EXPECT_EQ(inferred("reshape", {{"dims", numbers({3, 5})}}, {kUnknownDim, 4}), "[3, 5]");
}

TEST(ReshapeInferTest, RefusesWhatCannotFit) {
  for (const auto& dims : {numbers({5}), numbers({5, -1}), numbers({-1, -1}), numbers({-2, 6}),
                           numbers({}), numbers({12, 1, 1, 1, 1, 1, 1, 1, 1}), numbers({0, -1})}) {
    EXPECT_TRUE(mentions(inferred("reshape", {{"dims", dims}}, {3, 4}), "reshape.dims: found"));
  }
  // Even of nothing, -1 beside 0 could be anything.
  EXPECT_TRUE(mentions(inferred("reshape", {{"dims", numbers({0, -1})}}, {0}), "reshape.dims"));
  const AttrMap symbol{{"dims", std::vector<Dim>{{.symbol = "n"}}}};
  EXPECT_TRUE(mentions(inferred("reshape", symbol, {3, 4}, {{"n", -7}}), "reshape.dims: found"));
}

TEST(ReshapeInferTest, RefusesOverflowBehindAZero) {
  const auto huge = numbers({0, int64_t{1} << 40, int64_t{1} << 40});
  EXPECT_TRUE(mentions(inferred("reshape", {{"dims", huge}}, {0}), "reshape.dims: found"));
  const auto more = numbers({int64_t{1} << 40, int64_t{1} << 40, -1});
  EXPECT_TRUE(mentions(inferred("reshape", {{"dims", more}}, {kUnknownDim}), "reshape.dims"));
}

TEST(ReshapeViewTest, SplitsAndMergesWhereStridesAllow) {
  const auto view = [](const Dims& dims, const Dims& shape, const Dims& strides) {
    return placed("reshape", {{"dims", numbers(dims)}}, shape, strides);
  };
  EXPECT_EQ(view({2, 3, 4}, {6, 4}, {4, 1}), "[12, 4, 1] +0");
  EXPECT_EQ(view({24}, {6, 4}, {4, 1}), "[1] +0");
  EXPECT_EQ(view({24}, {6, 4}, {5, 1}), "copy");  // gaps
  EXPECT_EQ(view({2, 3, 4}, {6, 4}, {5, 1}), "[15, 5, 1] +0");
  EXPECT_EQ(view({3, 2, 2, 2}, {6, 4}, {5, 1}), "[10, 5, 2, 1] +0");
  EXPECT_EQ(view({4, 6}, {6, 4}, {5, 1}), "copy");  // straddles two blocks
  EXPECT_EQ(view({6}, {2, 3}, {1, 2}), "copy");     // transposed
  EXPECT_EQ(view({6}, {2, 3}, {0, 0}), "[0] +0");   // one element repeated
  EXPECT_EQ(view({3, 2}, {2, 3}, {0, 1}), "copy");  // a row repeated
  EXPECT_EQ(view({2, 1, 3}, {2, 3}, {0, 1}), "[0, 3, 1] +0");
  EXPECT_EQ(view({4, 3}, {2, 2, 3}, {0, 0, 1}), "[0, 1] +0");
}

TEST(ReshapeViewTest, UnitAndZeroExtents) {
  const auto view = [](const Dims& dims, const Dims& shape, const Dims& strides) {
    return placed("reshape", {{"dims", numbers(dims)}}, shape, strides);
  };
  EXPECT_EQ(view({6}, {1, 6, 1}, {99, 1, 77}), "[1] +0");  // strides of unit extents do not count
  EXPECT_NE(view({1, 2, 1, 3, 1}, {6}, {2}), "copy");
  EXPECT_NE(view({1, 1}, {1}, {9}), "copy");
  EXPECT_EQ(view({0, 7}, {3, 0, 2}, {50, 5, 5}), "[7, 1] +0");  // no element, so any strides do
}

// Against the definition: a view exists exactly where some strides give the row-major order.
TEST(ReshapeViewTest, AgreesWithTheDefinitionOnRandomStrides) {
  const std::vector<Dims> shapes{{12},      {2, 6},    {6, 2},  {3, 4},  {4, 3},    {2, 2, 3},
                                 {2, 3, 2}, {3, 2, 2}, {1, 12}, {12, 1}, {2, 1, 6}, {1, 3, 1, 4}};
  std::mt19937 random(1);
  int views = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    TensorDesc x = dense(DType::kF32, shapes[random() % shapes.size()]);
    const Dims to = shapes[random() % shapes.size()];
    const int64_t last = std::vector<int64_t>{0, 1, 1, 2}[random() % 4];
    int64_t step = last;
    for (int i = x.shape.rank() - 1; i >= 0; --i) {
      const auto kind = random() % 4;
      x.strides[i] = kind == 0 ? 0 : kind == 1 ? step + 1 : step;
      step = x.strides[i] * x.shape[i];
    }
    // The only candidate: each axis' stride is the offset of the first element along it.
    TensorDesc candidate = dense(DType::kF32, to);
    for (int i = 0; i < to.rank(); ++i) {
      candidate.strides[i] = to[i] > 1 ? offset_of(x, dense_strides(to)[i]) : 0;
    }
    bool expressible = true;
    for (int64_t i = 0; i < 12; ++i) {
      expressible = expressible && offset_of(candidate, i) == offset_of(x, i);
    }
    const auto view = reshape_view(x, to);
    ASSERT_EQ(view.has_value(), expressible)
        << to_string(x.shape) << " strides " << to_string(x.strides) << " to " << to_string(to);
    if (!view) continue;
    ++views;
    for (int64_t i = 0; i < 12; ++i) ASSERT_EQ(offset_of(view->desc, i), offset_of(x, i));
  }
  EXPECT_GT(views, 1000);
}

// ---- transpose ----

TEST(TransposeTest, InferChecksRankAndPermutation) {
  using Permutation = std::vector<int64_t>;
  const auto infer = [](const Permutation& p) {
    return inferred("transpose", {{"permutation", p}}, {2, kUnknownDim, 4});
  };
  EXPECT_EQ(infer({2, 0, 1}), "[4, 2, ?]");
  for (const Permutation& p : {Permutation{}, {0, 1}, {0, 1, 1}, {0, 1, 3}, {-1, 0, 1}, {0}}) {
    EXPECT_TRUE(mentions(infer(p), "transpose.permutation: found"));
  }
  EXPECT_TRUE(mentions(inferred("transpose", {}, {2}), "transpose.permutation"));
}

TEST(TransposeTest, ViewPermutesStrides) {
  EXPECT_EQ(
      placed("transpose", {{"permutation", std::vector<int64_t>{2, 0, 1}}}, {2, 3, 4}, {50, 10, 2}),
      "[2, 50, 10] +0");
}

// ---- slice ----

TEST(SliceTest, NegativesCountFromTheEnd) {
  const auto infer = [](const AttrMap& attrs) { return inferred("slice", attrs, {3, 10}); };
  EXPECT_EQ(infer({}), "[3, 10]");
  EXPECT_EQ(infer(slice_attrs(1, 2, 8, 1)), "[3, 6]");
  EXPECT_EQ(infer(slice_attrs(-1, -3, std::nullopt, 1)), "[3, 3]");
  EXPECT_EQ(infer(slice_attrs(-2, -3, -1, 1)), "[2, 10]");
  EXPECT_EQ(infer(slice_attrs(1, 0, std::nullopt, 3)), "[3, 4]");
  EXPECT_EQ(infer(slice_attrs(1, 1, 10, 3)), "[3, 3]");
  EXPECT_EQ(infer(slice_attrs(1, 0, 10, INT64_MAX)), "[3, 1]");
}

TEST(SliceTest, EmptySlicesAreLegal) {
  EXPECT_EQ(inferred("slice", slice_attrs(1, 4, 4, 2), {3, 10}), "[3, 0]");
  EXPECT_EQ(inferred("slice", slice_attrs(1, 10, std::nullopt, 1), {3, 10}), "[3, 0]");
  EXPECT_EQ(inferred("slice", {}, {0}), "[0]");
  // The address of an empty slice stays inside the input.
  EXPECT_EQ(placed("slice", slice_attrs(0, 3, 3, 1), {3, 10}, {10, 1}), "[10, 1] +0");
}

TEST(SliceTest, OutOfRangeIsRefusedNotClamped) {
  const auto infer = [](const AttrMap& attrs) { return inferred("slice", attrs, {3, 10}); };
  EXPECT_TRUE(mentions(infer(slice_attrs(1, 0, 11, 1)), "slice.end: found 11"));
  EXPECT_TRUE(mentions(infer(slice_attrs(1, 0, -11, 1)), "slice.end: found -11"));
  EXPECT_TRUE(mentions(infer(slice_attrs(1, 11, std::nullopt, 1)), "slice.start: found 11"));
  EXPECT_TRUE(mentions(infer(slice_attrs(1, INT64_MIN, std::nullopt, 1)), "slice.start: found"));
  EXPECT_TRUE(mentions(infer(slice_attrs(1, 5, 4, 1)), "slice.end: found 4"));
  EXPECT_TRUE(mentions(infer(slice_attrs(1, -1, 4, 1)), "slice.end: found 4"));
  EXPECT_TRUE(mentions(infer(slice_attrs(2, 0, 1, 1)), "slice.axis: found 2"));
  EXPECT_TRUE(mentions(infer(slice_attrs(-3, 0, 1, 1)), "slice.axis: found -3"));
  EXPECT_TRUE(mentions(infer(slice_attrs(0, 0, 1, 0)), "slice.step: found 0"));
}

TEST(SliceTest, UnknownExtent) {
  const Dims shape{kUnknownDim};
  EXPECT_EQ(inferred("slice", slice_attrs(0, 1, std::nullopt, 1), shape), "[?]");
  EXPECT_EQ(inferred("slice", slice_attrs(0, 1, -1, 1), shape), "[?]");
  EXPECT_EQ(inferred("slice", slice_attrs(0, 1, 8, 2), shape), "[4]");
  EXPECT_EQ(inferred("slice", slice_attrs(0, -5, -1, 1), shape), "[4]");
  EXPECT_TRUE(mentions(inferred("slice", slice_attrs(0, 5, 4, 1), shape), "slice.end: found 4"));
}

TEST(SliceTest, ViewStartsAtTheOffsetAndStepsOver) {
  EXPECT_EQ(placed("slice", slice_attrs(-1, -9, 8, 2), {3, 10}, {20, 2}), "[20, 4] +2");
  // One element: its stride does not count and must not overflow.
  EXPECT_EQ(placed("slice", slice_attrs(0, 2, 3, INT64_MAX), {3, 10}, {10, 1}), "[10, 1] +20");
}

TEST(SliceTest, AlignmentFollowsTheOffset) {
  TensorDesc x = dense(DType::kF16, {64});
  x.alignment_bytes = 64;
  SliceAttrs attrs;
  const auto alignment = [&](int64_t start) {
    attrs.start = start;
    return view_of_slice(attrs, x, {64 - start})->desc.alignment_bytes;
  };
  EXPECT_EQ(alignment(0), 64);
  EXPECT_EQ(alignment(1), 2);
  EXPECT_EQ(alignment(8), 16);
  EXPECT_EQ(alignment(32), 64);
}

// ---- broadcast ----

TEST(BroadcastTest, AlignsAtTheLastAxis) {
  const auto infer = [](const std::vector<Dim>& dims, const Dims& shape) {
    return inferred("broadcast", {{"dims", dims}}, shape);
  };
  EXPECT_EQ(infer(numbers({5, 2, 3}), {2, 1}), "[5, 2, 3]");
  EXPECT_EQ(infer(numbers({0}), {1}), "[0]");
  EXPECT_EQ(infer({{.symbol = "n"}, {3}}, {kUnknownDim, 1}), "[?, 3]");
  EXPECT_EQ(infer(numbers({4, 3}), {kUnknownDim, 3}), "[4, 3]");
  for (const auto& dims : {numbers({3, 2}), numbers({3}), numbers({2, 1}), numbers({2, -1}),
                           numbers({}), numbers({int64_t{1} << 40, int64_t{1} << 40, 2, 3})}) {
    EXPECT_TRUE(mentions(infer(dims, {2, 3}), "broadcast.dims: found"));
  }
}

TEST(BroadcastTest, RepeatedAxesHaveStrideZero) {
  const AttrMap attrs{{"dims", numbers({5, 2, 3})}};
  EXPECT_EQ(placed("broadcast", attrs, {2, 1}, {7, 9}), "[0, 7, 0] +0");
  EXPECT_EQ(placed("broadcast", {{"dims", numbers({1, 4})}}, {1, 4}, {4, 1}), "[4, 1] +0");
}

// ---- the copy kernels ----

class ViewCopyTest : public ::testing::TestWithParam<DType> {};

TEST_P(ViewCopyTest, ReshapeOfTransposedGappedAndRepeatedInput) {
  const std::vector<std::pair<Dims, Dims>> inputs{
      {{6, 4}, {4, 1}}, {{6, 4}, {1, 6}}, {{6, 4}, {7, 1}},      {{6, 4}, {0, 1}},
      {{6, 4}, {1, 0}}, {{24}, {3}},      {{2, 3, 4}, {1, 2, 6}}};
  for (const auto& [shape, strides] : inputs) {
    SCOPED_TRACE(to_string(shape) + to_string(strides));
    HostTensor x(GetParam(), shape, strides);
    x.fill_normal(1);
    expect_kernels_match_oracle({"reshape", {{"dims", numbers({4, 6})}}, {x}});
    expect_kernels_match_oracle({"reshape", {{"dims", numbers({4, 6})}}, {x}, 3, {7, 1}});
    expect_kernels_match_oracle({"reshape", {{"dims", numbers({-1})}}, {x}, 2, {2}});
  }
}

TEST_P(ViewCopyTest, TransposeAroundTheTileSize) {
  for (const Dims& shape :
       {Dims{1, 33}, Dims{31, 32}, Dims{32, 33}, Dims{33, 65}, Dims{257, 129}}) {
    for (int threads : {1, 2, 3}) {
      SCOPED_TRACE(to_string(shape));
      HostTensor x(GetParam(), shape);
      x.fill_normal(2);
      const AttrMap attrs{{"permutation", std::vector<int64_t>{1, 0}}};
      expect_kernels_match_oracle({"transpose", attrs, {x}, threads});
      const Dims gaps{2 * shape[0] + 3, 2};
      expect_kernels_match_oracle({"transpose", attrs, {x}, threads, gaps});
    }
  }
}

TEST_P(ViewCopyTest, EveryPermutationOfRankFour) {
  HostTensor dense_x(GetParam(), {3, 5, 34, 6});
  HostTensor gapped(GetParam(), {3, 5, 34, 6}, {2400, 450, 13, 2});
  dense_x.fill_normal(3);
  gapped.fill_normal(4);
  std::vector<int64_t> permutation{0, 1, 2, 3};
  do {
    SCOPED_TRACE(::testing::PrintToString(permutation));
    const AttrMap attrs{{"permutation", permutation}};
    expect_kernels_match_oracle({"transpose", attrs, {dense_x}});
    expect_kernels_match_oracle({"transpose", attrs, {gapped}});
  } while (std::next_permutation(permutation.begin(), permutation.end()));
}

TEST_P(ViewCopyTest, SliceAndBroadcast) {
  HostTensor x(GetParam(), {5, 1, 70}, {71, 3, 1});
  x.fill_normal(5);
  expect_kernels_match_oracle({"slice", slice_attrs(2, 3, -1, 5), {x}});
  expect_kernels_match_oracle({"slice", slice_attrs(0, 1, 3, 1), {x}});
  expect_kernels_match_oracle({"broadcast", {{"dims", numbers({2, 5, 9, 70})}}, {x}, 3});
  HostTensor column(GetParam(), {40, 1});
  column.fill_normal(6);
  expect_kernels_match_oracle({"broadcast", {{"dims", numbers({40, 5000})}}, {column}, 3});
}

TEST_P(ViewCopyTest, EmptyResults) {
  HostTensor x(GetParam(), {4, 0});
  expect_kernels_match_oracle({"reshape", {{"dims", numbers({0, 9})}}, {x}});
  expect_kernels_match_oracle({"transpose", {{"permutation", std::vector<int64_t>{1, 0}}}, {x}});
  expect_kernels_match_oracle({"slice", slice_attrs(0, 4, 4, 1), {x}});
  expect_kernels_match_oracle({"broadcast", {{"dims", numbers({3, 4, 0})}}, {x}});
}

TEST_P(ViewCopyTest, LongRowsOnManyThreads) {
  HostTensor x(GetParam(), {3, 100001}, {100003, 1});
  x.fill_normal(7);
  for (int threads : {1, 2, 3}) {
    expect_kernels_match_oracle({"reshape", {{"dims", numbers({-1})}}, {x}, threads});
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ViewCopyTest, every_dtype(), dtype_case_name);

void expect_same_bits(const OpCase& c) {
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->op != c.op || !is_under_test(*kernel)) continue;
    EXPECT_EQ(run_kernel(*kernel, c).element_bytes(), c.inputs[0].element_bytes()) << kernel->name;
  }
}

// A conversion to fp32 and back would make signalling NaNs quiet.
TEST(ViewCopyBitsTest, EveryBitPatternOfF16Survives) {
  HostTensor x(DType::kF16, {256, 256}, {1, 256});
  auto* bits = static_cast<uint16_t*>(x.view().data);
  for (int i = 0; i < 65536; ++i) bits[i] = static_cast<uint16_t>(i);
  const AttrMap attrs{{"dims", numbers({-1})}};
  expect_same_bits({"reshape", attrs, {x}});
}

TEST(ViewCopyBitsTest, SignallingNaNOfF32Survives) {
  HostTensor x(DType::kF32, {2, 2}, {1, 2});
  auto* bits = static_cast<uint32_t*>(x.view().data);
  for (uint32_t i = 0; i < 4; ++i) bits[i] = 0x7F800001u + 0x1234u * i;
  const AttrMap attrs{{"permutation", std::vector<int64_t>{0, 1}}};
  expect_same_bits({"transpose", attrs, {x}});
}

}  // namespace
}  // namespace me::testing
