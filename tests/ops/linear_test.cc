#include "ops/linear/linear.h"

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "ops/registry.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

enum class Bias { kNone, kSameType, kF32 };

// A linear case in words; build() makes random inputs for it.
struct LinearCase {
  DType dtype = DType::kF32;
  Dims x_shape;
  int64_t n = 1;
  bool nk = false;
  Bias bias = Bias::kSameType;
  bool relu = true;
  bool constant = false;
  int threads = 2;
  std::string output_dtype = {};
  bool allow_tf32 = false;
  Dims x_strides = {}, w_strides = {}, bias_strides = {}, y_strides = {};  // dense where empty

  OpCase build() const {
    const auto tensor = [](DType type, const Dims& shape, const Dims& strides) {
      return strides.rank() > 0 ? HostTensor(type, shape, strides) : HostTensor(type, shape);
    };
    const int64_t k = x_shape.back();
    OpCase c{"linear", {}, {}, threads, y_strides, constant};
    c.attrs["weight_layout"] = std::string(nk ? "NK" : "KN");
    c.attrs["activation"] = std::string(relu ? "RELU" : "NONE");
    if (!output_dtype.empty()) c.attrs["output_dtype"] = output_dtype;
    if (allow_tf32) c.attrs["allow_tf32"] = true;
    c.inputs.push_back(tensor(dtype, x_shape, x_strides).fill_normal(1));
    c.inputs.push_back(tensor(dtype, nk ? Dims{n, k} : Dims{k, n}, w_strides).fill_normal(2));
    if (bias != Bias::kNone) {
      const DType type = bias == Bias::kF32 ? DType::kF32 : dtype;
      c.inputs.push_back(tensor(type, {n}, bias_strides).fill_normal(3));
    }
    return c;
  }
  std::string describe() const {
    return "x " + to_string(x_shape) + to_string(x_strides) + " n " + std::to_string(n) +
           (nk ? " NK" : " KN") + to_string(w_strides) + " bias " +
           std::to_string(static_cast<int>(bias)) + to_string(bias_strides) +
           (relu ? " relu" : "") + (allow_tf32 ? " tf32" : "") + (constant ? " constant" : "") +
           " threads " + std::to_string(threads) + " y " + output_dtype + to_string(y_strides);
  }
};

void expect_match(const LinearCase& c) {
  SCOPED_TRACE(c.describe());
  expect_kernels_match_oracle(c.build());
}

// Output of every CPU kernel of linear, as fp32.
std::vector<std::vector<float>> outputs_of(const OpCase& c) {
  std::vector<std::vector<float>> out;
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->op != "linear" || !is_under_test(*kernel)) continue;
    if (!kernel->supports(make_problem(c).problem).ok) continue;
    const HostTensor y = run_kernel(*kernel, c);
    out.emplace_back();
    for (int64_t i = 0; i < y.desc().count(); ++i) out.back().push_back(y.get(i));
  }
  return out;
}

class LinearTest : public ::testing::TestWithParam<DType> {};

TEST_P(LinearTest, EveryEdgeOfMNK) {
  const std::vector<int64_t> edges{1, 7, 8, 9, 15, 16, 17, 63, 64, 65};
  unsigned variant = 0;
  for (int64_t m : edges) {
    for (int64_t n : edges) {
      for (int64_t k : edges) {
        ++variant;
        LinearCase c{.dtype = GetParam(), .x_shape = {m, k}, .n = n};
        c.nk = variant & 1;
        c.relu = variant & 2;
        c.bias = static_cast<Bias>(variant / 4 % 3);
        c.constant = variant / 12 % 2;
        c.threads = 1 + static_cast<int>(variant % 3);
        expect_match(c);
        if (HasFailure() || IsSkipped()) return;
      }
    }
  }
}

TEST_P(LinearTest, OddLargeShape) {
  for (bool constant : {false, true}) {
    expect_match({.dtype = GetParam(), .x_shape = {333, 1000}, .n = 777, .constant = constant});
  }
}

// Each shape with W as [K, N] and as [N, K], and some variety of options.
void expect_every_configuration_matches(DType dtype,
                                        const std::vector<std::array<int64_t, 3>>& shapes) {
  int configs = 0;
  unsigned variant = 0;
  for (bool nk : {false, true}) {
    for (const auto& [m, n, k] : shapes) {
      ++variant;
      LinearCase c{.dtype = dtype, .x_shape = {m, k}, .n = n, .nk = nk};
      c.constant = variant & 1;
      c.relu = variant & 2;
      c.output_dtype = variant % 3 == 0 ? "F32" : variant % 3 == 1 ? "" : "F16";
      if (variant % 5 == 0) c.y_strides = {n + 1, 1};
      SCOPED_TRACE(c.describe());
      configs += expect_configs_match_oracle(c.build());
      if (::testing::Test::HasFailure()) return;
    }
  }
  if (configs == 0) GTEST_SKIP() << "no kernel has configurations here";
}

// Few enough tiles for a sanitizer.
TEST_P(LinearTest, EveryConfigurationOfFewTiles) {
  expect_every_configuration_matches(GetParam(), {{13, 72, 520},
                                                  {65, 200, 64},
                                                  {70, 131, 200},
                                                  {70, 136, 203},
                                                  {40, 1000, 8},
                                                  {193, 264, 136}});
}

// Shapes that fill tiles and that leave edges, more and fewer tiles than the machine has blocks, K
// shorter than a ring of stages and several times as long.
TEST_P(LinearTest, EveryConfiguration) {
  expect_every_configuration_matches(GetParam(), {{256, 256, 256},
                                                  {300, 520, 200},
                                                  {1, 264, 1024},
                                                  {1100, 2200, 72},
                                                  {900, 2200, 1160},
                                                  {333, 777, 1000},
                                                  {1100, 2201, 91}});
}

TEST_P(LinearTest, EveryOption) {
  for (bool nk : {false, true}) {
    for (Bias bias : {Bias::kNone, Bias::kSameType, Bias::kF32}) {
      for (bool relu : {false, true}) {
        for (const char* output : {"F32", "F16", "BF16"}) {
          for (bool constant : {false, true}) {
            for (int threads : {1, 2, 3}) {
              expect_match({.dtype = GetParam(),
                            .x_shape = {5, 23},
                            .n = 19,
                            .nk = nk,
                            .bias = bias,
                            .relu = relu,
                            .constant = constant,
                            .threads = threads,
                            .output_dtype = output});
            }
          }
        }
      }
    }
  }
}

TEST_P(LinearTest, StridedInputs) {
  for (bool nk : {false, true}) {
    for (bool constant : {false, true}) {
      for (bool relu : {false, true}) {
        const LinearCase base{.dtype = GetParam(),
                              .x_shape = {11, 21},
                              .n = 34,
                              .nk = nk,
                              .relu = relu,
                              .constant = constant};
        for (const Dims& strides : {Dims{1, 11}, Dims{1, 13}, Dims{25, 1}, Dims{0, 1}, Dims{1, 0},
                                    Dims{0, 0}, Dims{44, 2}, Dims{2, 22}, Dims{7, 1}}) {
          LinearCase c = base;
          c.x_strides = strides;
          expect_match(c);
        }
        const int64_t rows = nk ? 34 : 21;
        const int64_t columns = nk ? 21 : 34;
        for (const Dims& strides :
             {Dims{1, rows}, Dims{1, rows + 2}, Dims{columns + 3, 1}, Dims{0, 1}, Dims{1, 0},
              Dims{3 * columns, 3}, Dims{2, 2 * rows + 1}}) {
          LinearCase c = base;
          c.w_strides = strides;
          expect_match(c);
        }
        for (int64_t stride : {0, 3}) {
          LinearCase c = base;
          c.bias_strides = {stride};
          expect_match(c);
        }
      }
    }
  }
}

TEST_P(LinearTest, StridedOutputs) {
  for (bool relu : {false, true}) {
    for (const Dims& strides : {Dims{40, 1}, Dims{80, 2}, Dims{1, 11}, Dims{2, 25}}) {
      expect_match(
          {.dtype = GetParam(), .x_shape = {11, 21}, .n = 34, .relu = relu, .y_strides = strides});
    }
    expect_match({.dtype = GetParam(),
                  .x_shape = {2, 3, 5},
                  .n = 4,
                  .relu = relu,
                  .y_strides = {100, 7, 1}});
  }
}

TEST_P(LinearTest, UnitExtentsWithOddStrides) {
  for (bool relu : {false, true}) {
    expect_match({.dtype = GetParam(),
                  .x_shape = {1, 21},
                  .n = 6,
                  .relu = relu,
                  .x_strides = {0, 1},
                  .y_strides = {0, 1}});
    expect_match(
        {.dtype = GetParam(), .x_shape = {1, 21}, .n = 6, .relu = relu, .x_strides = {3, 5}});
    expect_match({.dtype = GetParam(),
                  .x_shape = {9, 1},
                  .n = 6,
                  .relu = relu,
                  .x_strides = {3, 0},
                  .w_strides = {0, 1}});
    expect_match({.dtype = GetParam(),
                  .x_shape = {9, 21},
                  .n = 1,
                  .relu = relu,
                  .w_strides = {2, 0},
                  .bias_strides = {0},
                  .y_strides = {3, 0}});
  }
}

TEST_P(LinearTest, LeadingDimensionsFlatten) {
  for (bool relu : {false, true}) {
    expect_match({.dtype = GetParam(), .x_shape = {13}, .n = 6, .relu = relu});
    expect_match({.dtype = GetParam(), .x_shape = {3, 5, 13}, .n = 6, .relu = relu});
    expect_match({.dtype = GetParam(), .x_shape = {2, 3, 5, 13}, .n = 6, .relu = relu});
    // One row stride leads through all, gaps and unit axes included.
    expect_match({.dtype = GetParam(),
                  .x_shape = {2, 1, 5, 13},
                  .n = 6,
                  .relu = relu,
                  .x_strides = {100, 7, 20, 1}});
    // None does.
    expect_match({.dtype = GetParam(),
                  .x_shape = {3, 5, 13},
                  .n = 6,
                  .relu = relu,
                  .x_strides = {13, 39, 1}});
    expect_match({.dtype = GetParam(),
                  .x_shape = {3, 5, 13},
                  .n = 6,
                  .relu = relu,
                  .x_strides = {0, 13, 1}});
  }
}

TEST_P(LinearTest, MoreRowsThanABlock) {
  for (int64_t m : {1024, 1025, 2051}) {
    for (bool relu : {false, true}) {
      expect_match({.dtype = GetParam(), .x_shape = {m, 5}, .n = 3, .relu = relu, .threads = 3});
      expect_match({.dtype = GetParam(),
                    .x_shape = {m, 5},
                    .n = 3,
                    .relu = relu,
                    .x_strides = {1, m},
                    .y_strides = {6, 2}});
    }
  }
}

TEST_P(LinearTest, RowsLongerThanAChunk) {
  for (int64_t n : {511, 512, 513, 1500}) {
    expect_match({.dtype = GetParam(), .x_shape = {40, 9}, .n = n, .threads = 3});
  }
}

TEST_P(LinearTest, EmptyResults) {
  expect_match({.dtype = GetParam(), .x_shape = {0, 4}, .n = 3});
  expect_match({.dtype = GetParam(), .x_shape = {4, 4}, .n = 0});
  expect_match({.dtype = GetParam(), .x_shape = {2, 0, 0}, .n = 3});
}

TEST_P(LinearTest, ZeroKGivesTheActivatedBias) {  // W
  for (bool constant : {false, true}) {
    for (Bias bias : {Bias::kNone, Bias::kSameType, Bias::kF32}) {
      for (bool relu : {false, true}) {
        expect_match({.dtype = GetParam(),
                      .x_shape = {2, 3, 0},
                      .n = 600,
                      .bias = bias,
                      .relu = relu,
                      .constant = constant});
      }
    }
  }
}

// A single special value in x reaches its row only, one in w its column only.
TEST_P(LinearTest, NaNAndInfinityReachWhatTheyTouch) {
  for (float special : {kNaN, kInf, -kInf}) {
    for (bool relu : {false, true}) {
      for (int input : {0, 1, 2}) {
        SCOPED_TRACE(std::to_string(special) + " in input " + std::to_string(input));
        LinearCase c{.dtype = GetParam(), .x_shape = {9, 17}, .n = 33, .relu = relu};
        OpCase built = c.build();
        built.inputs[static_cast<size_t>(input)].set(5, special);
        expect_kernels_match_oracle(built);
      }
    }
  }
}

TEST_P(LinearTest, ReluOfNaNIsNaNEverywhere) {
  for (const Dims& shape : {Dims{1, 8}, Dims{3, 40}, Dims{64, 64}}) {
    for (bool constant : {false, true}) {
      LinearCase c{.dtype = GetParam(), .x_shape = shape, .n = 50, .constant = constant};
      OpCase built = c.build();
      for (int64_t i = 0; i < count(shape); i += shape[1]) built.inputs[0].set(i, kNaN);
      for (const auto& y : outputs_of(built)) {
        for (float value : y) ASSERT_TRUE(std::isnan(value));
      }
    }
  }
}

TEST_P(LinearTest, ReluOfMinusZeroIsPlusZero) {
  // An accumulator that underflows to -0 (oneDNN keeps its sign for some shapes only), alone and
  // with a bias of -0, and that bias by itself.
  const AttrMap relu{{"activation", std::string("RELU")}};
  for (int64_t m : {1, 8, 64}) {
    for (int64_t k : {0, 1}) {
      HostTensor x(GetParam(), {m, k}), w(GetParam(), {k, 24}), bias(DType::kF32, {24});
      const bool f16 = GetParam() == DType::kF16;
      x.fill(std::vector<float>(static_cast<size_t>(m * k), f16 ? -0.0f : -0x1p-100f));
      w.fill(std::vector<float>(static_cast<size_t>(k * 24), f16 ? 1.0f : 0x1p-100f));
      bias.fill(std::vector<float>(24, -0.0f));
      for (const OpCase& c :
           {OpCase{"linear", relu, {x, w, bias}}, OpCase{"linear", relu, {x, w}}}) {
        for (const auto& y : outputs_of(c)) {
          for (float value : y) ASSERT_EQ(std::bit_cast<uint32_t>(value), 0u);
        }
      }
    }
  }
}

// One short of, at and past the tiles of 64, 128 and 256 and the steps of 64 that GPU kernels have.
TEST_P(LinearTest, EdgesOfDeviceTiles) {
  unsigned variant = 0;
  for (int64_t m : {15, 17, 63, 65, 127, 129}) {
    for (int64_t n : {64, 127, 129, 257}) {
      for (int64_t k : {33, 64, 65, 128, 136}) {
        ++variant;
        LinearCase c{.dtype = GetParam(), .x_shape = {m, k}, .n = n};
        c.nk = variant & 1;
        c.relu = variant & 2;
        c.bias = static_cast<Bias>(variant / 4 % 3);
        expect_match(c);
        if (HasFailure() || IsSkipped()) return;
      }
    }
  }
}

// More M-tiles than a group holds, and not a multiple of it; every tile is partial at the edges.
TEST_P(LinearTest, PartialLastGroupOfTiles) {
  for (bool nk : {false, true}) {
    expect_match({.dtype = GetParam(), .x_shape = {1100, 72}, .n = 2104, .nk = nk});
  }
}

// M·N of a few tiles and a long K, which GPU kernels cut into parts; the last part is shorter.
TEST_P(LinearTest, LongKInParts) {
  for (bool nk : {false, true}) {
    for (bool relu : {false, true}) {
      expect_match({.dtype = GetParam(), .x_shape = {1, 784}, .n = 512, .nk = nk, .relu = relu});
      expect_match({.dtype = GetParam(), .x_shape = {5, 1030}, .n = 130, .nk = nk, .relu = relu});
      expect_match({.dtype = GetParam(), .x_shape = {16, 4104}, .n = 128, .nk = nk, .relu = relu});
    }
  }
}

// Rows at multiples of 16 bytes whose lengths are none, in every operand: the last vector of a row
// is partial, and what follows it in memory is no part of the tensor.
TEST_P(LinearTest, AlignedRowsOfRaggedLengths) {
  for (bool nk : {false, true}) {
    for (int64_t k : {1, 61, 67, 131}) {
      expect_match({.dtype = GetParam(),
                    .x_shape = {70, k},
                    .n = 131,
                    .nk = nk,
                    .x_strides = {136, 1},
                    .w_strides = {136, 1},
                    .y_strides = {144, 1}});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearTest, every_dtype(), dtype_case_name);

// ---- TF32, where the model allows it ----

// Edges of tiles, every layout, K in parts, strides that lead nowhere.
TEST(LinearTf32Test, MatchesTheOracle) {
  unsigned variant = 0;
  for (int64_t m : {1, 17, 63, 65, 129, 300}) {
    for (int64_t n : {1, 31, 64, 127, 257}) {
      for (int64_t k : {0, 1, 7, 16, 67, 1030}) {
        ++variant;
        LinearCase c{.x_shape = {m, k}, .n = n, .allow_tf32 = true};
        c.nk = variant & 1;
        c.relu = variant & 2;
        c.bias = variant % 3 == 0 ? Bias::kNone : Bias::kF32;
        c.output_dtype = variant % 5 == 0 ? "BF16" : "";
        if (variant % 7 == 0) c.x_strides = {1, m + 3};
        if (variant % 11 == 0) c.y_strides = {1, m};
        expect_match(c);
        if (HasFailure() || IsSkipped()) return;
      }
    }
  }
  expect_match({.x_shape = {3, 5, 13}, .n = 6, .allow_tf32 = true, .x_strides = {13, 39, 1}});
}

TEST(LinearTf32Test, SpecialValuesReachWhatTheyTouch) {
  for (float special : {kNaN, kInf, -kInf}) {
    for (size_t input : {size_t{0}, size_t{1}}) {
      LinearCase c{.x_shape = {9, 17}, .n = 33, .relu = false, .allow_tf32 = true};
      OpCase built = c.build();
      built.inputs[input].set(5, special);
      expect_kernels_match_oracle(built);
    }
  }
}

// 1 + 2^-12 is 1 in TF32, and only there: the kernel says which it is.
TEST(LinearTf32Test, OnlyWhatSaysSoRounds) {
  for (bool allowed : {false, true}) {
    HostTensor x(DType::kF32, {70, 16}), w(DType::kF32, {16, 24});
    x.fill(std::vector<float>(70 * 16, 0.0f));
    w.fill(std::vector<float>(16 * 24, 1.0f));
    for (int64_t i = 0; i < 70; ++i) x.set(i * 16 + 3, 1.0f + 0x1p-12f);
    OpCase c{"linear", {{"allow_tf32", allowed}}, {x, w}};
    for (const KernelEntry* kernel : kernels()) {
      if (kernel->op != "linear" || !is_under_test(*kernel)) continue;
      const Support support = kernel->supports(make_problem(c).problem);
      const bool tf32 = support.ok && support.reason.find("TF32") != std::string::npos;
      EXPECT_TRUE(!tf32 || allowed);
      EXPECT_EQ(kernel->name == "linear_cuda_tf32" && allowed, tf32);
      if (!support.ok) continue;
      const HostTensor y = run_kernel(*kernel, c);
      for (int64_t i = 0; i < y.desc().count(); ++i) {
        ASSERT_EQ(y.get(i), tf32 ? 1.0f : 1.0f + 0x1p-12f) << kernel->name;
      }
    }
  }
}

// ---- worked facts ----

TEST(LinearFactTest, BiasComesBeforeTheOneConversion) {  // W
  // 256 + 1 = 257 lies between bf16's 256 and 258. In fp32 the bias makes it 258; after a
  // conversion it would be 256 + 1, and 256 again.
  HostTensor x(DType::kBF16, {1, 2}), w(DType::kBF16, {2, 1}), bias(DType::kBF16, {1});
  x.fill({256, 1});
  w.fill({1, 1});
  bias.fill({1});
  for (const auto& y : outputs_of({"linear", {}, {x, w, bias}})) EXPECT_EQ(y[0], 258.0f);
}

TEST(LinearFactTest, F16OverflowsOnlyAtTheFinalRounding) {
  for (DType bias_type : {DType::kF16, DType::kF32}) {
    HostTensor x(DType::kF16, {1, 1}), w(DType::kF16, {1, 1}), bias(bias_type, {1});
    x.fill({256});
    w.fill({256});
    bias.fill({-1000});
    for (const auto& y : outputs_of({"linear", {}, {x, w, bias}})) EXPECT_EQ(y[0], 64544.0f);
    for (const auto& y : outputs_of({"linear", {}, {x, w}})) EXPECT_EQ(y[0], kInf);
  }
}

TEST(LinearFactTest, TrueF32KeepsTwelveBits) {
  for (int64_t m : {1, 8, 40}) {
    for (bool constant : {false, true}) {
      HostTensor x(DType::kF32, {m, 16}), w(DType::kF32, {16, 24});
      x.fill(std::vector<float>(static_cast<size_t>(m) * 16, 0.0f));
      w.fill(std::vector<float>(16 * 24, 0.0f));
      for (int64_t i = 0; i < m; ++i) x.set(i * 16 + 3, 1.0f + 0x1p-12f);
      for (int64_t j = 0; j < 24; ++j) w.set(3 * 24 + j, 1.0f + 0x1p-23f * static_cast<float>(j));
      OpCase c{"linear", {}, {x, w}};
      c.constant_weights = constant;
      for (const auto& y : outputs_of(c)) {
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_EQ(y[i], (1.0f + 0x1p-12f) * (1.0f + 0x1p-23f * static_cast<float>(i % 24)));
        }
      }
    }
  }
}

// A prepared kernel keeps no values of inputs that are not constant, and reads no output.
// (On a GPU sessions, which replay, are tested for it.)
TEST(LinearReplayTest, SecondRunSeesTheNewInputs) {
  if (!test_device()->host_memory()) GTEST_SKIP() << "of host memory";
  for (DType dtype : {DType::kF32, DType::kF16}) {
    for (bool relu : {false, true}) {
      LinearCase c{.dtype = dtype, .x_shape = {7, 19}, .n = 5, .relu = relu};
      OpCase built = c.build();
      const PreparedCase prepared = make_problem(built);
      for (const KernelEntry* kernel : kernels()) {
        if (kernel->op != "linear" || !is_under_test(*kernel)) continue;
        if (!kernel->supports(prepared.problem).ok) continue;
        std::vector<char> storage(
            static_cast<size_t>(workspace_of(*kernel, prepared.problem) + kWorkspaceAlignment));
        void* workspace = storage.data();
        size_t space = storage.size();
        std::align(kWorkspaceAlignment, 1, workspace, space);
        HostTensor y(dtype, {7, 5});
        std::vector<void*> inputs;
        for (const HostTensor& t : built.inputs) inputs.push_back(t.view().data);
        void* outputs[] = {y.view().data};
        auto op = kernel->prepare(prepared.problem, {inputs, outputs, workspace});
        ASSERT_TRUE(op.ok());
        op.value()->enqueue(nullptr);
        for (uint64_t i = 0; i < 3; ++i) built.inputs[i].fill_normal(10 + i);
        op.value()->enqueue(nullptr);
        EXPECT_TRUE(check_output(y.view(), run_oracle(built)).passed);
      }
    }
  }
}

}  // namespace
}  // namespace me::testing
