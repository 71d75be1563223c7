#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

class AddTest : public ::testing::TestWithParam<DType> {};

TEST_P(AddTest, MatchesOracleOverEdgeShapes) {
  for (const Dims& shape : {Dims{1}, Dims{3, 5}, Dims{2, 511}, Dims{2, 512}, Dims{2, 513},
                            Dims{0, 4}, Dims{4, 0}, Dims{2, 3, 4, 5}}) {
    SCOPED_TRACE(to_string(shape));
    HostTensor a(GetParam(), shape);
    HostTensor b(GetParam(), shape);
    expect_kernels_match_oracle({"add", {}, {a.fill_normal(1), b.fill_normal(2)}});
  }
}

TEST_P(AddTest, TransposedBroadcastAndStridedOutput) {
  HostTensor a(GetParam(), {7, 13}, {1, 7});
  HostTensor b(GetParam(), {7, 13}, {0, 2});
  expect_kernels_match_oracle({"add", {}, {a.fill_normal(3), b.fill_normal(4)}, 2, {20, 1}});
}

TEST_P(AddTest, InfinitiesAndNaN) {
  HostTensor a(GetParam(), {4});
  HostTensor b(GetParam(), {4});
  a.fill({kInf, kInf, kNaN, -kInf});
  b.fill({1, -kInf, 1, -kInf});
  expect_kernels_match_oracle({"add", {}, {a, b}});
}

INSTANTIATE_TEST_SUITE_P(Types, AddTest, every_dtype(), dtype_case_name);

TEST(AddInferTest, RefusesDifferentTypes) {
  EXPECT_NE(infer_error("add", {}, {{DType::kF32, {2}}, {DType::kF16, {2}}}), "");
  EXPECT_NE(infer_error("add", {}, {{DType::kF32, {2}}, {DType::kF32, {3}}}), "");
  EXPECT_NE(infer_error("add", {}, {{DType::kF32, {2}}, {DType::kF32, {2, 1}}}), "");
  EXPECT_EQ(infer_error("add", {}, {{DType::kF32, {kUnknownDim}}, {DType::kF32, {3}}}), "");
}

}  // namespace
}  // namespace me::testing
