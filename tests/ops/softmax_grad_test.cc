#include <cmath>

#include "ops/registry.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

void expect_grad(const HostTensor& y, const HostTensor& g, const Dims& output_strides = {}) {
  for (const int threads : {1, 2, 3}) {
    SCOPED_TRACE("threads " + std::to_string(threads));
    expect_kernels_match_oracle({"softmax_grad", {}, {y, g}, threads, output_strides});
  }
}

// dx of every kernel that this build has.
std::vector<HostTensor> run_all(const HostTensor& y, const HostTensor& g) {
  std::vector<HostTensor> results;
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->op != "softmax_grad" || !is_under_test(*kernel)) continue;
    results.push_back(run_kernel(*kernel, {"softmax_grad", {}, {y, g}}));
  }
  return results;
}

class SoftmaxGradTest : public ::testing::TestWithParam<DType> {
 protected:
  // y is like a softmax: rows that sum to about one, a few large elements. g is anything.
  HostTensor probabilities(const Dims& shape, const Dims& strides, uint64_t seed) const {
    HostTensor y(GetParam(), shape, strides);
    y.fill_normal(seed);
    const int64_t n = shape.back();
    for (int64_t i = 0; i < y.desc().count(); ++i) {
      y.set(i, std::abs(y.get(i)) / static_cast<float>(n));
    }
    return y;
  }
  HostTensor gradient(const Dims& shape, const Dims& strides, uint64_t seed) const {
    HostTensor g(GetParam(), shape, strides);
    return g.fill_normal(seed, 4);
  }
  void expect_match(const Dims& shape, const Dims& y_strides, const Dims& g_strides,
                    const Dims& output_strides = {}) const {
    SCOPED_TRACE(to_string(shape) + ", y by " + to_string(y_strides) + ", g by " +
                 to_string(g_strides));
    expect_grad(probabilities(shape, y_strides, 1), gradient(shape, g_strides, 2), output_strides);
  }
};

TEST_P(SoftmaxGradTest, WorkedPair) {
  HostTensor y(GetParam(), {2});
  HostTensor g(GetParam(), {2});
  y.fill({0.25f, 0.75f});
  g.fill({2, -1});
  for (const HostTensor& dx : run_all(y, g)) {
    EXPECT_EQ(dx.get(0), 0.5625f);
    EXPECT_EQ(dx.get(1), -0.5625f);
  }
  expect_grad(y, g);
}

TEST_P(SoftmaxGradTest, ConstantGradientGivesAboutZeroWhereRowsAreNormalised) {
  HostTensor y(GetParam(), {3, 64});
  HostTensor g(GetParam(), {3, 64});
  y.fill(std::vector<float>(192, 1.0f / 64));
  g.fill(std::vector<float>(192, 3.0f));
  for (const HostTensor& dx : run_all(y, g)) {
    for (int64_t i = 0; i < 192; ++i) EXPECT_EQ(dx.get(i), 0) << "element " << i;
  }
}

// Σ g is 0 here, so a kernel that reduced g alone would return y·g.
TEST_P(SoftmaxGradTest, SumIsOfTheProductsAndNotOfTheGradientAlone) {
  HostTensor y(GetParam(), {4});
  HostTensor g(GetParam(), {4});
  y.fill({0.5f, 0.25f, 0.125f, 0.125f});
  g.fill({4, -4, 8, -8});
  for (const HostTensor& dx : run_all(y, g)) {
    EXPECT_EQ(dx.get(0), 1.5f);  // the dot is 1
    EXPECT_EQ(dx.get(1), -1.25f);
    EXPECT_EQ(dx.get(2), 0.875f);
    EXPECT_EQ(dx.get(3), -1.125f);
  }
}

TEST_P(SoftmaxGradTest, LengthsAroundTheVectorWidths) {
  for (const int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65}) {
    expect_match({5, n}, {n, 1}, {n, 1});
  }
}

TEST_P(SoftmaxGradTest, LengthsAroundTheBuffersAnd32769) {
  for (const int64_t n : {511, 512, 513, 16383, 16384, 16385, 32769}) {
    expect_match({2, n}, {n, 1}, {n, 1});
  }
}

// On the GPU: 8 elements to a lane up to 256, 16 to a lane up to a warp's 512, then to a block.
TEST_P(SoftmaxGradTest, LengthsAroundTheLanesAndTheWarp) {
  for (const int64_t n : {127, 128, 129, 255, 256, 257, 1040}) expect_match({3, n}, {n, 1}, {n, 1});
  expect_match({131, 9}, {9, 1}, {9, 1});  // the last block has few rows
}

TEST_P(SoftmaxGradTest, AlignedRowsWithARaggedEnd) {
  for (const int64_t n : {13, 250, 515, 1029}) {
    const int64_t pitch = (n + 7) / 8 * 8;
    expect_match({3, n}, {pitch, 1}, {pitch, 1}, {pitch, 1});
  }
}

// On the GPU 49152 elements of 16 bits stay in shared memory.
TEST_P(SoftmaxGradTest, RowsAroundWhatSharedMemoryKeeps) {
  for (const int64_t n : {24577, 49153, 70001}) expect_match({1, n}, {n, 1}, {n, 1});
}

// A tile of the GPU's is 16 rows (8 in fp32) and a chunk up to 256 columns; 14 stay on an H200.
TEST_P(SoftmaxGradTest, TransposedAroundTheTilesChunksAndTheRing) {
  for (const int64_t n : {31, 255, 257, 3584, 3585, 5000}) {
    for (const int64_t rows : {8, 16}) expect_match({rows, n}, {1, rows}, {1, rows});
  }
  expect_match({16, 300}, {1, 16}, {304, 1});
}

TEST_P(SoftmaxGradTest, ZeroSizedDimensions) {
  for (const Dims& shape : {Dims{0}, Dims{0, 5}, Dims{5, 0}, Dims{2, 3, 0}}) {
    expect_match(shape, dense_strides(shape), dense_strides(shape));
  }
}

// A panel is 16 rows of 1024 in fp32, 32 rows of 512 in the 16-bit types.
TEST_P(SoftmaxGradTest, TransposedAroundThePanelsRowsAndColumns) {
  for (const int64_t rows : {1, 15, 16, 17, 33}) {
    for (const int64_t n : {2, 37, 512, 513, 1023, 1024, 1025}) {
      expect_match({rows, n}, {1, rows}, {1, rows + 3});
    }
  }
}

TEST_P(SoftmaxGradTest, OneInputTransposedAndTheOtherNot) {
  expect_match({17, 1100}, {1, 17}, {1100, 1});
  expect_match({17, 1100}, {1100, 1}, {1, 17});
}

TEST_P(SoftmaxGradTest, ColumnSliceBroadcastAndHigherRank) {
  expect_match({7, 100}, {131, 1}, {107, 1});
  expect_match({7, 100}, {0, 1}, {1, 0});
  expect_match({7, 100}, {300, 3}, {0, 0});
  expect_match({2, 3, 4, 37}, {444, 148, 37, 1}, {0, 148, 37, 1});
}

TEST_P(SoftmaxGradTest, StridedOutputsLeaveTheirGapsAlone) {
  for (const int64_t n : {3, 65, 1100, 16400}) {
    expect_match({3, n}, {n, 1}, {n, 1}, {n + 5, 1});
    expect_match({3, n}, {n, 1}, {n, 1}, {1, 3});
    expect_match({3, n}, {1, 3}, {n, 1}, {2 * n, 2});
  }
}

TEST_P(SoftmaxGradTest, NaNAndInfinityStayInTheirRow) {
  for (const int64_t n : {5, 37}) {
    for (const float bad : {kNaN, kInf, -kInf}) {
      SCOPED_TRACE(::testing::Message() << n << " with " << bad);
      HostTensor y = probabilities({3, n}, {n, 1}, 3);
      HostTensor g = gradient({3, n}, {n, 1}, 4);
      g.set(n + n - 1, bad);
      expect_grad(y, g);
      g = gradient({3, n}, {n, 1}, 4);
      y.set(n, kNaN);
      expect_grad(y, g);
    }
  }
}

TEST_P(SoftmaxGradTest, ZeroProbabilityGivesZeroForAFiniteGradient) {
  HostTensor y(GetParam(), {4});
  HostTensor g(GetParam(), {4});
  y.fill({0, 1, 0, 0});
  g.fill({1e4f, -2, -1e4f, 3});
  for (const HostTensor& dx : run_all(y, g)) {
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(dx.get(i), 0);
  }
}

TEST_P(SoftmaxGradTest, SameBitsWithAnyNumberOfThreads) {
  for (const Dims& strides : {Dims{1000, 1}, Dims{1, 37}}) {
    const HostTensor y = probabilities({37, 1000}, strides, 5);
    const HostTensor g = gradient({37, 1000}, {1000, 1}, 6);
    const KernelEntry* kernel = find_kernel("softmax_grad_cpu_rows");
    if (kernel == nullptr) GTEST_SKIP() << "this build leaves it out";
    const HostTensor one = run_kernel(*kernel, {"softmax_grad", {}, {y, g}, 1});
    for (const int threads : {2, 3, 7}) {
      const HostTensor many = run_kernel(*kernel, {"softmax_grad", {}, {y, g}, threads});
      EXPECT_EQ(one.element_bytes(), many.element_bytes());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SoftmaxGradTest, every_dtype(), dtype_case_name);

TEST(SoftmaxGradValueTest, HugeGradients) {
  HostTensor y(DType::kF32, {2, 2});
  HostTensor g(DType::kF32, {2, 2});
  y.fill({0.5f, 0.5f, 1, 0});
  g.fill({1e38f, -1e38f, 3e38f, 3e38f});
  expect_grad(y, g);
}

TEST(SoftmaxGradInferTest, RefusesDifferentTypesAndShapesAndNamesTheField) {
  const TensorType f32{DType::kF32, {2, 3}};
  for (const TensorType& g : {TensorType{DType::kF16, {2, 3}}, TensorType{DType::kF32, {3, 2}},
                              TensorType{DType::kF32, {6}}}) {
    const std::string error = infer_error("softmax_grad", {}, {f32, g});
    EXPECT_NE(error.find("softmax_grad.inputs"), std::string::npos) << error;
    EXPECT_NE(error.find("found y f32[2, 3] and g " + to_string(g)), std::string::npos) << error;
  }
  EXPECT_NE(infer_error("softmax_grad", {}, {{DType::kF32, {}}, {DType::kF32, {}}}), "");
  EXPECT_EQ(infer_error("softmax_grad", {}, {f32, {DType::kF32, {kUnknownDim, 3}}}), "");
}

}  // namespace
}  // namespace me::testing
