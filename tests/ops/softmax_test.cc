#include <algorithm>
#include <cmath>

#include "ops/registry.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

constexpr int kThreadCounts[] = {1, 2, 3};

void expect_softmax(const HostTensor& x, const Dims& output_strides = {}) {
  for (const int threads : kThreadCounts) {
    SCOPED_TRACE("threads " + std::to_string(threads));
    expect_kernels_match_oracle({"softmax", {}, {x}, threads, output_strides});
  }
}

// Runs `body(kernel)` for each kernel of softmax that this build has.
template <class Body>
void for_each_kernel(const Body& body) {
  int ran = 0;
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->op != "softmax" || !is_under_test(*kernel)) continue;
    SCOPED_TRACE(std::string(kernel->name));
    body(*kernel);
    ++ran;
  }
  if (ran == 0) GTEST_SKIP() << "this build leaves out the CPU kernels of softmax";
}

class SoftmaxTest : public ::testing::TestWithParam<DType> {
 protected:
  HostTensor tensor(const Dims& shape) const { return HostTensor(GetParam(), shape); }
  HostTensor tensor(const Dims& shape, const Dims& strides) const {
    return HostTensor(GetParam(), shape, strides);
  }
};

// Vector widths (1, 4, 8, 16 lanes) and four of them, ±1.
TEST_P(SoftmaxTest, LengthsAroundTheVectorWidths) {
  for (const int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65}) {
    SCOPED_TRACE(n);
    expect_softmax(tensor({5, n}).fill_normal(static_cast<uint64_t>(n), 3));
  }
}

TEST_P(SoftmaxTest, LengthsAroundTheChunkAndTheCachedRow) {
  for (const int64_t n : {1023, 1024, 1025, 2049, 32767, 32768, 32769}) {
    SCOPED_TRACE(n);
    expect_softmax(tensor({2, n}).fill_normal(static_cast<uint64_t>(n), 3));
  }
}

// On the GPU: 8 logits to a lane up to 256, 32 to a lane up to a warp's 1024, then to a block.
TEST_P(SoftmaxTest, LengthsAroundTheLanesAndTheWarp) {
  for (const int64_t n : {255, 256, 257, 1000, 1056, 2080}) {
    SCOPED_TRACE(n);
    expect_kernels_match_oracle(
        {"softmax", {}, {tensor({3, n}).fill_normal(static_cast<uint64_t>(n), 3)}});
  }
  // More rows than a block takes, the last block partial.
  for (const int64_t n : {8, 9, 37}) {
    SCOPED_TRACE(n);
    expect_kernels_match_oracle({"softmax", {}, {tensor({131, n}).fill_normal(22, 3)}});
  }
}

// Rows that start on 16 bytes and end inside a vector.
TEST_P(SoftmaxTest, AlignedRowsWithARaggedEnd) {
  for (const int64_t n : {13, 250, 1029, 3003}) {
    SCOPED_TRACE(n);
    HostTensor x = tensor({3, n}, {(n + 7) / 8 * 8, 1});
    expect_kernels_match_oracle({"softmax", {}, {x.fill_normal(23, 3)}, 2, {(n + 7) / 8 * 8, 1}});
  }
}

// On the GPU a row passes through shared memory by chunks: up to 49152 logits of 16 bits with two
// blocks to a multiprocessor, up to 98304 kept, more than that read again.
TEST_P(SoftmaxTest, RowsAroundWhatSharedMemoryKeeps) {
  for (const int64_t n : {49153, 98305, 131073}) {
    SCOPED_TRACE(n);
    expect_kernels_match_oracle({"softmax", {}, {tensor({1, n}).fill_normal(24, 2)}});
  }
}

// 257 chunks of 1024: one more than the GPU's split merges while it applies.
TEST_P(SoftmaxTest, MoreChunksThanAreMergedInPlace) {
  const int64_t n = 256 * 1024 + 1;
  expect_kernels_match_oracle({"softmax", {}, {tensor({1, n}).fill_normal(25, 2)}});
}

TEST_P(SoftmaxTest, OneLongRowAndFourOf32769) {
  expect_softmax(tensor({100001}).fill_normal(1, 2));
  expect_softmax(tensor({4, 32769}).fill_normal(2, 2));
}

TEST_P(SoftmaxTest, ZeroSizedDimensions) {
  for (const Dims& shape : {Dims{0}, Dims{0, 5}, Dims{5, 0}, Dims{2, 0, 3}, Dims{2, 3, 0}}) {
    SCOPED_TRACE(to_string(shape));
    expect_softmax(tensor(shape));
  }
}

TEST_P(SoftmaxTest, LeadingAxesThatMergeAndThatDoNot) {
  expect_softmax(tensor({2, 3, 4, 37}, {3 * 4 * 40 + 1, 4 * 40, 40, 1}).fill_normal(4));
  expect_softmax(tensor({2, 3, 4, 37}, {37, 8 * 37, 2 * 37, 1}).fill_normal(4));
  expect_softmax(tensor({2, 1, 4, 5}, {4 * 5, 999, 5, 1}).fill_normal(4));
  expect_softmax(tensor({1, 1, 5}).fill_normal(4));
  expect_softmax(tensor({2, 3, 4, 37}, {0, 37, 3 * 37, 1}).fill_normal(4));
}

TEST_P(SoftmaxTest, HigherRanks) { expect_softmax(tensor({2, 3, 4, 37}).fill_normal(4)); }

// Each row has its own logits, so a row or column that is swapped shows.
TEST_P(SoftmaxTest, TransposedTwoByThree) {
  HostTensor x = tensor({3, 2}, {1, 3});
  x.fill({0, 3, 1, 5, 2, -4});
  EXPECT_EQ(x.get(1), 3);   // logical (0, 1) reads 3 and writes 1
  EXPECT_EQ(x.get(5), -4);  // logical (2, 1) reads 2·1 + 1·3 = 5
  expect_softmax(x);
}

// A panel is 16 rows of 2048 in fp32, 32 rows of 1024 in the 16-bit types.
TEST_P(SoftmaxTest, TransposedAroundThePanelsRowsAndColumns) {
  for (const int64_t rows : {1, 15, 16, 17, 31, 33}) {
    for (const int64_t n : {2, 37, 1024, 1025, 2047, 2048, 2049}) {
      SCOPED_TRACE(to_string(Dims{rows, n}));
      HostTensor x = tensor({rows, n}, {1, rows + 3});
      expect_kernels_match_oracle({"softmax", {}, {x.fill_normal(5, 3)}});
    }
  }
}

// A tile of the GPU's is 16 rows (8 in fp32) and a chunk up to 512 columns; 14 chunks stay on an
// H200, and the ring of slots goes round behind them. Row counts of 8 and 16 are fetched 16 bytes
// at a time.
TEST_P(SoftmaxTest, TransposedAroundTheTilesChunksAndTheRing) {
  for (const int64_t n : {31, 33, 511, 513, 7168, 7169, 9000}) {
    for (const int64_t rows : {8, 16}) {
      SCOPED_TRACE(to_string(Dims{rows, n}));
      HostTensor x = tensor({rows, n}, {1, rows});
      expect_kernels_match_oracle({"softmax", {}, {x.fill_normal(26, 3)}});
    }
  }
  HostTensor batches = tensor({2, 24, 70}, {24 * 72, 1, 24});
  expect_kernels_match_oracle({"softmax", {}, {batches.fill_normal(27, 3)}});
}

TEST_P(SoftmaxTest, TransposedBatchesWhosePanelsCrossMatrices) {
  expect_softmax(tensor({3, 5, 40}, {5 * 40, 1, 5}).fill_normal(6, 3));
}

TEST_P(SoftmaxTest, ColumnSliceWithRowGaps) {
  expect_softmax(tensor({7, 100}, {131, 1}).fill_normal(7));
  expect_softmax(tensor({3, 2049}, {2111, 1}).fill_normal(8));
}

TEST_P(SoftmaxTest, ColumnStrideWithoutAdjacentRows) {
  expect_softmax(tensor({5, 70}, {300, 3}).fill_normal(9));
  expect_softmax(tensor({2, 2500}, {1, 2}).fill_normal(10));
}

TEST_P(SoftmaxTest, BroadcastRowsAndColumns) {
  expect_softmax(tensor({6, 50}, {0, 1}).fill_normal(11));
  expect_softmax(tensor({6, 50}, {1, 0}).fill_normal(12));
  expect_softmax(tensor({6, 50}, {0, 0}).fill_normal(13));
}

TEST_P(SoftmaxTest, StridedOutputsLeaveTheirGapsAlone) {
  for (const int64_t n : {3, 65, 2050, 32770}) {
    SCOPED_TRACE(n);
    HostTensor dense = tensor({3, n});
    dense.fill_normal(14, 2);
    expect_softmax(dense, {n + 5, 1});
    expect_softmax(dense, {2 * n, 2});
    expect_softmax(dense, {1, 3});
    HostTensor transposed = tensor({3, n}, {1, 4});
    expect_softmax(transposed.fill_normal(15, 2), {1, 3});
  }
}

TEST_P(SoftmaxTest, MinusInfinityGetsNothing) {
  HostTensor x = tensor({2, 20});
  x.fill_normal(16);
  for (const int64_t i : {0, 7, 8, 19, 20, 38}) x.set(i, -kInf);
  expect_softmax(x);
  for_each_kernel([&](const KernelEntry& kernel) {
    const HostTensor y = run_kernel(kernel, {"softmax", {}, {x}});
    for (const int64_t i : {0, 7, 8, 19, 20, 38}) EXPECT_EQ(y.get(i), 0);
  });
}

TEST_P(SoftmaxTest, LeadingChunkOfMinusInfinityAndNegativeLogitsAfterIt) {
  HostTensor x = tensor({1, 40000});
  x.fill_normal(17);
  for (int64_t i = 0; i < 40000; ++i) x.set(i, i < 33000 ? -kInf : -50 - std::abs(x.get(i)));
  expect_softmax(x);
}

// The bad row stands between good ones, which must not notice; the bad logit stands in the first
// vector, the middle, and the tail.
TEST_P(SoftmaxTest, NaNOrPlusInfinityMakesItsRowNaN) {
  for (const int64_t n : {1, 21, 2060}) {
    for (const Dims& strides : {Dims{n, 1}, Dims{1, 3}}) {
      for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
        for (const float bad : {kNaN, -kNaN, kInf}) {
          SCOPED_TRACE(::testing::Message() << n << " logits, " << bad << " at " << at);
          HostTensor x = tensor({3, n}, strides);
          x.fill_normal(18).set(n + at, bad);
          expect_kernels_match_oracle({"softmax", {}, {x}});
        }
      }
    }
  }
}

TEST_P(SoftmaxTest, NaNOrPlusInfinityInEitherChunkOfALongRow) {
  for (const int64_t at : {5, 32780}) {
    for (const float bad : {kNaN, kInf}) {
      SCOPED_TRACE(::testing::Message() << bad << " at " << at);
      HostTensor x = tensor({2, 32790});
      x.fill_normal(18).set(at, bad);
      expect_kernels_match_oracle({"softmax", {}, {x}});
    }
  }
}

TEST_P(SoftmaxTest, NothingButMinusInfinityMakesItsRowNaN) {
  for (const int64_t n : {1, 21, 2060, 32790}) {
    for (const Dims& strides : {Dims{n, 1}, Dims{1, 3}}) {
      SCOPED_TRACE(to_string(strides));
      HostTensor x = tensor({3, n}, strides);
      x.fill_normal(19);
      for (int64_t i = 0; i < n; ++i) x.set(n + i, -kInf);
      expect_kernels_match_oracle({"softmax", {}, {x}});
      for_each_kernel([&](const KernelEntry& kernel) {
        const HostTensor y = run_kernel(kernel, {"softmax", {}, {x}});
        EXPECT_TRUE(std::isnan(y.get(n)) && std::isnan(y.get(2 * n - 1)));
        EXPECT_FALSE(std::isnan(y.get(0)) || std::isnan(y.get(2 * n)));
      });
    }
  }
}

TEST_P(SoftmaxTest, NaNOrPlusInfinityAmongMinusInfinity) {
  for (const float bad : {kNaN, kInf}) {
    HostTensor x = tensor({1, 2000});
    x.fill(std::vector<float>(2000, -kInf)).set(1500, bad);
    expect_softmax(x);
  }
}

TEST_P(SoftmaxTest, OneLogitGivesExactlyOne) {
  HostTensor x = tensor({4, 1});
  x.fill({-3, 0, 1000, 6e4f});
  for_each_kernel([&](const KernelEntry& kernel) {
    const HostTensor y = run_kernel(kernel, {"softmax", {}, {x}});
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(y.get(i), 1);
  });
}

TEST_P(SoftmaxTest, RowsSumToOne) {
  for (const int64_t n : {10, 1000, 20000}) {
    const HostTensor x = tensor({3, n}).fill_normal(20, 2);
    const OracleOutput want = run_oracle({"softmax", {}, {x}});
    for_each_kernel([&](const KernelEntry& kernel) {
      const HostTensor y = run_kernel(kernel, {"softmax", {}, {x}});
      for (int64_t row = 0; row < 3; ++row) {
        double sum = 0;
        double most = 0;  // what the elements may be off by, all to the same side
        for (int64_t i = row * n; i < (row + 1) * n; ++i) {
          sum += y.get(i);
          most += want.bound[static_cast<size_t>(i)] + unit_roundoff(GetParam()) * y.get(i) +
                  subnormal_roundoff(GetParam());
        }
        EXPECT_NEAR(sum, 1, most);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SoftmaxTest, every_dtype(), dtype_case_name);

TEST(SoftmaxValueTest, HugeLogitsNeitherOverflowNorExceedOne) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    HostTensor x(dtype, {5, 3});
    x.fill({3e38f, -3e38f, 3e38f,    //
            -3e38f, -3e38f, -3e38f,  //
            3e38f, 0, 1,             //
            -3e38f, 0, -kInf,        //
            3e38f, -kInf, 2.9e38f});
    expect_softmax(x);
    for_each_kernel([&](const KernelEntry& kernel) {
      const HostTensor y = run_kernel(kernel, {"softmax", {}, {x}});
      EXPECT_EQ(y.get(0), 0.5f);
      EXPECT_EQ(y.get(1), 0);
      EXPECT_EQ(y.get(6), 1);
      EXPECT_EQ(y.get(10), 1);
    });
  }
}

TEST(SoftmaxValueTest, LocallyNormalisedChunksWouldShow) {
  HostTensor x(DType::kF32, {1, 2048});
  std::vector<float> logits(2048, 0.0f);
  std::fill(logits.begin() + 1024, logits.end(), 3.0f);
  x.fill(logits);
  expect_softmax(x);
}

// Logits that rise from chunk to chunk rescale the running sum at every merge.
TEST(SoftmaxValueTest, MaximumThatRisesInEveryChunk) {
  HostTensor x(DType::kF32, {2, 33000});
  std::vector<float> logits(66000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 33000) * 0.002f;
  expect_softmax(x.fill(logits));
  HostTensor transposed(DType::kF32, {2, 33000}, {1, 2});
  expect_softmax(transposed.fill(logits));
}

TEST(SoftmaxValueTest, SubnormalOutputsAreKept) {
  HostTensor x(DType::kF32, {1, 4});
  x.fill({0, -90, -100, -103});
  for_each_kernel([&](const KernelEntry& kernel) {
    const HostTensor y = run_kernel(kernel, {"softmax", {}, {x}});
    for (const int64_t i : {1, 2, 3}) {
      // On a GPU the exponent -t·log2 e, rounded three times, is off by 3·t·2^-24 (see oracle.cc);
      // the CPU's exp reduces its argument in two parts.
      const double want = std::exp(static_cast<double>(x.get(i)));
      const double t = -x.get(i);
      const double relative = test_backend() == Backend::kCpu ? 0x1p-20 : (3 * t + 6) * 0x1p-24;
      EXPECT_NEAR(y.get(i), want, 0x1p-149 + want * relative) << "element " << i;
      EXPECT_GT(y.get(i), 0);
    }
  });
}

TEST(SoftmaxValueTest, SameBitsWithAnyNumberOfThreadsAndAmongOtherRows) {
  for (const Dims& strides : {Dims{5001, 1}, Dims{1, 23}}) {
    HostTensor x(DType::kF32, {23, 5001}, strides);
    x.fill_normal(21, 3);
    for_each_kernel([&](const KernelEntry& kernel) {
      const HostTensor one = run_kernel(kernel, {"softmax", {}, {x}, 1});
      for (const int threads : {2, 3, 7}) {
        const HostTensor many = run_kernel(kernel, {"softmax", {}, {x}, threads});
        EXPECT_EQ(one.element_bytes(), many.element_bytes());
      }
      // The last row alone, with the strides it had.
      HostTensor row(DType::kF32, {1, 5001}, strides);
      for (int64_t i = 0; i < 5001; ++i) row.set(i, x.get(22 * 5001 + i));
      const HostTensor alone = run_kernel(kernel, {"softmax", {}, {row}, 1});
      for (int64_t i = 0; i < 5001; ++i) ASSERT_EQ(alone.get(i), one.get(22 * 5001 + i));
    });
  }
}

TEST(SoftmaxPlanTest, SplitScratchIsTheWorked1088Bytes) {
  int found = 0;
  for (const char* name : {"softmax_cpu_split", "softmax_cuda_split"}) {
    const KernelEntry* split = find_kernel(name);
    if (split == nullptr) continue;
    const PreparedCase prepared =
        make_problem({"softmax", {}, {HostTensor(DType::kF32, {4, 32769})}});
    EXPECT_EQ(workspace_of(*split, prepared.problem), 1088) << name;
    ++found;
  }
  if (found == 0) GTEST_SKIP() << "this build leaves out the split kernels";
}

// The name of the kernel of least cost, earlier rows of the registry first.
std::string_view chosen(const Dims& shape, int threads) {
  const PreparedCase prepared =
      make_problem({"softmax", {}, {HostTensor(DType::kF16, shape)}, threads});
  std::string_view best;
  double least = std::numeric_limits<double>::infinity();
  for_each_kernel([&](const KernelEntry& kernel) {
    const Support support = kernel.supports(prepared.problem);
    EXPECT_TRUE(support.ok);
    EXPECT_FALSE(support.reason.empty());
    if (support.cost_us < least) {
      least = support.cost_us;
      best = kernel.name;
    }
  });
  return best;
}

TEST(SoftmaxPlanTest, SplitIsChosenForFewLongRowsOnly) {
  if (test_backend() == Backend::kCuda) {
    if (find_kernel("softmax_cuda_split") == nullptr) GTEST_SKIP() << "this build leaves it out";
    EXPECT_EQ(chosen({1, 1048576}, 1), "softmax_cuda_split");
    EXPECT_EQ(chosen({4, 32769}, 1), "softmax_cuda_split");
    EXPECT_EQ(chosen({300, 8192}, 1), "softmax_cuda_rows");
    EXPECT_EQ(chosen({300, 40000}, 1), "softmax_cuda_rows");
    EXPECT_EQ(chosen({1, 1000}, 1), "softmax_cuda_rows");
    EXPECT_EQ(chosen({0, 1000}, 1), "softmax_cuda_rows");
    EXPECT_EQ(chosen({1, 0}, 1), "softmax_cuda_rows");
    return;
  }
  if (find_kernel("softmax_cpu_split") == nullptr) GTEST_SKIP() << "this build leaves it out";
  EXPECT_EQ(chosen({1, 100000}, 8), "softmax_cpu_split");
  EXPECT_EQ(chosen({4, 100000}, 8), "softmax_cpu_split");
  EXPECT_EQ(chosen({1, 100000}, 2), "softmax_cpu_split");
  EXPECT_EQ(chosen({1, 100000}, 1), "softmax_cpu_rows");
  EXPECT_EQ(chosen({8, 100000}, 8), "softmax_cpu_rows");
  EXPECT_EQ(chosen({9, 100000}, 8), "softmax_cpu_rows");
  EXPECT_EQ(chosen({1, 1000}, 8), "softmax_cpu_rows");
  EXPECT_EQ(chosen({0, 1000}, 8), "softmax_cpu_rows");
  EXPECT_EQ(chosen({1, 0}, 8), "softmax_cpu_rows");
}

TEST(SoftmaxInferTest, RefusesAScalarAndNamesTheField) {
  const std::string error = infer_error("softmax", {}, {{DType::kF32, {}}});
  EXPECT_NE(error.find("softmax.inputs"), std::string::npos) << error;
  EXPECT_NE(error.find("found f32[], expected"), std::string::npos) << error;
}

TEST(SoftmaxInferTest, KeepsTypeShapeAndUnknownDimensions) {
  const OpDef* op = find_op("softmax");
  const TensorType x{DType::kBF16, {kUnknownDim, 7}};
  const auto types = op->infer(*op->parse({}).value(), std::vector{x}, {});
  ASSERT_TRUE(types.ok());
  EXPECT_EQ(types.value(), std::vector{x});
}

}  // namespace
}  // namespace me::testing
