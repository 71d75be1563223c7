#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/attention/cuda_schedule.h"
#include "ops/registry.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

// Extents of one case; kv_heads, kv_len and value_dim equal heads, q_len and head_dim where left 0.
struct Sizes {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t q_len = 1;
  int64_t head_dim = 1;
  int64_t kv_heads = 0;
  int64_t kv_len = 0;
  int64_t value_dim = 0;
};

std::string describe(const Sizes& s) {
  return to_string(Dims{s.batch, s.heads, s.q_len, s.head_dim, s.kv_heads, s.kv_len, s.value_dim});
}

AttrMap causal(std::string offset = "BOTTOM_RIGHT") {
  return {{"causal", true}, {"causal_offset", std::move(offset)}};
}

OpCase make_case(DType dtype, Sizes s, const AttrMap& attrs = {}, int threads = 2,
                 float spread = 1) {
  if (s.kv_heads == 0) s.kv_heads = s.heads;
  if (s.kv_len == 0) s.kv_len = s.q_len;
  if (s.value_dim == 0) s.value_dim = s.head_dim;
  HostTensor q(dtype, {s.batch, s.heads, s.q_len, s.head_dim});
  HostTensor k(dtype, {s.batch, s.kv_heads, s.kv_len, s.head_dim});
  HostTensor v(dtype, {s.batch, s.kv_heads, s.kv_len, s.value_dim});
  return {"attention",
          attrs,
          {q.fill_normal(1, spread), k.fill_normal(2, spread), v.fill_normal(3)},
          threads};
}

void expect_match(DType dtype, const Sizes& s, const AttrMap& attrs = {}, int threads = 2) {
  SCOPED_TRACE(describe(s) + " threads " + std::to_string(threads));
  expect_kernels_match_oracle(make_case(dtype, s, attrs, threads));
}

// The oracle's values of a case, which every kernel is checked against on the way.
std::vector<double> checked_values(const OpCase& c) {
  expect_kernels_match_oracle(c);
  return run_oracle(c).value.data;
}

// What a query answers whose scores are `logits`: a query and keys of one dimension and scale 1.
// Asked once alone (as in decoding) and once by eight queries at a time.
double answer(DType dtype, const std::vector<float>& logits, const std::vector<float>& values) {
  const auto n = static_cast<int64_t>(logits.size());
  double first = 0;
  for (const int64_t q_len : {8, 1}) {
    SCOPED_TRACE(q_len);
    HostTensor q(dtype, {1, 1, q_len, 1}), k(dtype, {1, 1, n, 1}), v(dtype, {1, 1, n, 1});
    q.fill(std::vector<float>(static_cast<size_t>(q_len), 1.0f));
    first = checked_values({"attention", {{"scale", 1.0}}, {q, k.fill(logits), v.fill(values)}})[0];
  }
  return first;
}

class AttentionTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionTest, every_dtype(), dtype_case_name);

TEST_P(AttentionTest, WeightsFollowTheLogits) {
  // Weights 1/4, 1/4, 1/2. With a left unscaled when the maximum grows it would be 7.
  EXPECT_NEAR(answer(GetParam(), {0, 0, std::log(2.0f)}, {1, 3, 10}), 6.0,
              10 * unit_roundoff(GetParam()));
}

TEST_P(AttentionTest, MaximumGrowsInALaterTile) {
  // The same three logits, each in a key tile of its own; the keys between them weigh nothing.
  std::vector<float> logits(400, -kInf);
  std::vector<float> values(400, 1000);
  logits[0] = 0;
  values[0] = 1;
  logits[200] = 0;
  values[200] = 3;
  logits[399] = std::log(2.0f);
  values[399] = 10;
  EXPECT_NEAR(answer(GetParam(), logits, values), 6.0,
              10 * unit_roundoff(GetParam()));  // of ln 2
}

TEST_P(AttentionTest, EdgesOfTheTiles) {
  // Row tiles are 192, 96, 48 or 24 high, blocks of rows 6, key tiles 128 or, up to 4 rows, 64
  // wide.
  for (const int64_t q_len : {1, 2, 4, 5, 6, 7, 23, 24, 25, 47, 48, 49, 95, 96, 97, 193}) {
    for (const int64_t kv_len : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129}) {
      expect_match(GetParam(),
                   {.batch = 1, .heads = 1, .q_len = q_len, .head_dim = 16, .kv_len = kv_len});
    }
  }
}

TEST_P(AttentionTest, CausalEdgesOfTheTilesWithBothOffsets) {
  for (const char* offset : {"BOTTOM_RIGHT", "TOP_LEFT"}) {
    SCOPED_TRACE(offset);
    for (const int64_t q_len : {1, 2, 3, 6, 7, 24, 25, 64, 96, 97, 127, 128, 129}) {
      for (const int64_t kv_len : {1, 5, 63, 64, 65, 127, 128, 129, 131, 300}) {
        expect_match(GetParam(),
                     {.batch = 1, .heads = 1, .q_len = q_len, .head_dim = 8, .kv_len = kv_len},
                     causal(offset));
      }
    }
  }
}

TEST_P(AttentionTest, TallRowTiles) {
  // Enough heads that no row tile is cut below its full height.
  for (const int64_t q_len : {95, 96, 97, 191, 192, 193, 200}) {
    expect_match(GetParam(), {.batch = 2, .heads = 3, .q_len = q_len, .head_dim = 20}, causal());
  }
}

TEST_P(AttentionTest, QueriesThatSeeNoKeyGiveZero) {
  OpCase c = make_case(
      GetParam(), {.batch = 1, .heads = 2, .q_len = 100, .head_dim = 8, .kv_len = 30}, causal());
  const std::vector<double> values = checked_values(c);
  for (size_t i = 0; i < 70 * 8; ++i) ASSERT_EQ(values[i], 0.0) << i;
  EXPECT_NE(values[70 * 8], 0.0);
}

TEST_P(AttentionTest, NoKeysAtAllGiveZero) {
  OpCase c = make_case(GetParam(), {.batch = 1, .heads = 2, .q_len = 3, .head_dim = 4});
  c.inputs[1] = HostTensor(GetParam(), {1, 2, 0, 4});
  c.inputs[2] = HostTensor(GetParam(), {1, 2, 0, 5});
  for (const double value : checked_values(c)) EXPECT_EQ(value, 0.0);
}

TEST_P(AttentionTest, HeadDimensions) {
  for (const int64_t head_dim : {1, 3, 16, 17, 64, 80, 128, 256}) {
    for (const int64_t value_dim : {head_dim, int64_t{1}, int64_t{24}, int64_t{100}}) {
      for (const int64_t q_len : {1, 2, 4, 70}) {
        expect_match(GetParam(), {.batch = 1,
                                  .heads = 2,
                                  .q_len = q_len,
                                  .head_dim = head_dim,
                                  .kv_len = 70,
                                  .value_dim = value_dim});
      }
    }
  }
}

TEST_P(AttentionTest, GroupedHeads) {
  for (const int64_t kv_heads : {1, 2, 3, 6}) {
    for (const int64_t q_len : {1, 2, 17, 65}) {
      expect_match(GetParam(),
                   {.batch = 2,
                    .heads = 6,
                    .q_len = q_len,
                    .head_dim = 16,
                    .kv_heads = kv_heads,
                    .kv_len = 90},
                   causal());
      expect_match(GetParam(),
                   {.batch = 2,
                    .heads = 6,
                    .q_len = q_len,
                    .head_dim = 16,
                    .kv_heads = kv_heads,
                    .kv_len = 40},
                   causal("TOP_LEFT"));
    }
  }
}

TEST_P(AttentionTest, ManyHeadsOnOneKeyHead) {
  // One query's group alone fills more than a row tile.
  expect_match(GetParam(),
               {.batch = 1, .heads = 130, .q_len = 3, .head_dim = 8, .kv_heads = 1, .kv_len = 66},
               causal());
}

TEST_P(AttentionTest, DecodingSplitsItsKeys) {
  for (const int64_t kv_len : {511, 512, 513, 2047, 5000}) {
    for (const int64_t heads : {1, 4}) {
      for (const int threads : {1, 2, 3}) {
        expect_match(GetParam(),
                     {.batch = 1,
                      .heads = heads,
                      .q_len = 1,
                      .head_dim = 64,
                      .kv_heads = 1,
                      .kv_len = kv_len},
                     causal(), threads);
      }
    }
  }
}

TEST_P(AttentionTest, SplitRowTilesWithQueriesThatSeeNothing) {
  // Four threads and one row tile: its keys are split, and the first queries see none of them, or
  // none of the later parts.
  expect_match(GetParam(), {.batch = 1, .heads = 1, .q_len = 20, .head_dim = 16, .kv_len = 1500},
               causal("TOP_LEFT"), 4);
  expect_match(GetParam(), {.batch = 1, .heads = 1, .q_len = 20, .head_dim = 16, .kv_len = 1500},
               causal(), 4);
}

TEST_P(AttentionTest, ThreadsOneTwoThree) {
  for (const int threads : {1, 2, 3}) {
    expect_match(GetParam(), {.batch = 2, .heads = 3, .q_len = 150, .head_dim = 32}, causal(),
                 threads);
    expect_match(GetParam(), {.batch = 1, .heads = 1, .q_len = 40, .head_dim = 32, .kv_len = 600},
                 {}, threads);
  }
}

TEST_P(AttentionTest, ZeroSizedDimensions) {
  const DType t = GetParam();
  struct Case {
    Dims q, k, v;
  };
  for (const Case& c : {Case{{0, 2, 3, 4}, {0, 2, 3, 4}, {0, 2, 3, 4}},
                        Case{{1, 0, 3, 4}, {1, 0, 3, 4}, {1, 0, 3, 4}},
                        Case{{1, 0, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}},
                        Case{{1, 2, 0, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}},
                        Case{{1, 2, 0, 4}, {1, 2, 0, 4}, {1, 2, 0, 4}}}) {
    SCOPED_TRACE(to_string(c.q) + to_string(c.k));
    for (const AttrMap& attrs : {AttrMap{}, causal()}) {
      expect_kernels_match_oracle(
          {"attention", attrs, {HostTensor(t, c.q), HostTensor(t, c.k), HostTensor(t, c.v)}});
    }
  }
}

TEST_P(AttentionTest, SequenceMajorProjection) {
  // [batch, length, heads, head_dim] read as [batch, heads, length, head_dim], and written so.
  const DType t = GetParam();
  const int64_t heads = 3, length = 70, dim = 16;
  const Dims shape{2, heads, length, dim};
  const Dims strides{length * heads * dim, dim, heads * dim, 1};
  HostTensor q(t, shape, strides), k(t, shape, strides), v(t, shape, strides);
  expect_kernels_match_oracle(
      {"attention", causal(), {q.fill_normal(1), k.fill_normal(2), v.fill_normal(3)}, 2, strides});
}

TEST_P(AttentionTest, FusedProjection) {
  // [batch, length, 3, heads, head_dim]: rows of q, k and v are three projections apart.
  const DType t = GetParam();
  for (const int64_t length : {1, 2, 3, 70}) {
    const int64_t heads = 2, dim = 32;
    const Dims shape{2, heads, length, dim};
    const Dims strides{length * 3 * heads * dim, dim, 3 * heads * dim, 1};
    HostTensor q(t, shape, strides), k(t, shape, strides), v(t, shape, strides);
    expect_kernels_match_oracle(
        {"attention", causal(), {q.fill_normal(1), k.fill_normal(2), v.fill_normal(3)}});
  }
}

TEST_P(AttentionTest, TransposedInnerAxis) {
  // Stored [batch, heads, head_dim, length], read without a copy; and strides of two elements.
  const DType t = GetParam();
  for (const int64_t q_len : {1, 2, 3, 50}) {
    SCOPED_TRACE(q_len);
    const int64_t kv_len = 70, dim = 12;
    HostTensor q(t, {2, 2, q_len, dim}, {2 * q_len * dim, q_len * dim, 1, q_len});
    HostTensor k(t, {2, 2, kv_len, dim}, {2 * kv_len * dim, kv_len * dim, 1, kv_len});
    HostTensor v(t, {2, 2, kv_len, dim}, {2 * kv_len * dim, kv_len * dim, 1, kv_len});
    q.fill_normal(1), k.fill_normal(2), v.fill_normal(3);
    expect_kernels_match_oracle({"attention", {}, {q, k, v}});
    HostTensor k2(t, {2, 2, kv_len, dim}, {4 * kv_len * dim, 2 * kv_len * dim, 2 * dim, 2});
    HostTensor v2(t, {2, 2, kv_len, dim}, {4 * kv_len * dim, 2 * kv_len * dim, 2 * dim, 2});
    expect_kernels_match_oracle({"attention", {}, {q, k2.fill_normal(4), v2.fill_normal(5)}});
  }
}

TEST_P(AttentionTest, BroadcastKeysAndValues) {
  // One K and V for both batch entries and every head; then one key for all positions.
  const DType t = GetParam();
  HostTensor q(t, {2, 3, 40, 16});
  HostTensor k(t, {2, 3, 70, 16}, {0, 0, 16, 1});
  HostTensor v(t, {2, 3, 70, 16}, {0, 0, 16, 1});
  q.fill_normal(1), k.fill_normal(2), v.fill_normal(3);
  expect_kernels_match_oracle({"attention", causal(), {q, k, v}});
  HostTensor one_key(t, {2, 3, 70, 16}, {0, 0, 0, 1});
  HostTensor one_number(t, {2, 3, 70, 16}, {0, 0, 0, 0});
  expect_kernels_match_oracle({"attention", {}, {q, one_key.fill_normal(4), v}});
  expect_kernels_match_oracle({"attention", {}, {q, k, one_number.fill_normal(5)}});
}

TEST_P(AttentionTest, StridedOutput) {
  OpCase c = make_case(GetParam(), {.batch = 2, .heads = 2, .q_len = 30, .head_dim = 20}, causal());
  c.output_strides = {4 * 30 * 50, 2 * 30 * 50, 50, 2};
  expect_kernels_match_oracle(c);
  c.output_strides = {2 * 30 * 20, 30 * 20, 1, 30};  // transposed
  expect_kernels_match_oracle(c);
}

TEST_P(AttentionTest, ScaleZeroNegativeAndLarge) {
  for (const double scale : {0.0, -0.0, -1.0, -0.125, 1.0, 30.0, 1e-30}) {
    SCOPED_TRACE(scale);
    AttrMap attrs = causal();
    attrs["scale"] = scale;
    expect_match(GetParam(), {.batch = 1, .heads = 2, .q_len = 66, .head_dim = 16}, attrs);
  }
}

TEST_P(AttentionTest, LogitsOfTenThousand) {
  EXPECT_EQ(answer(GetParam(), {1e4f, -1e4f, 0}, {5, 7, 9}), 5);
  EXPECT_EQ(answer(GetParam(), {-1e4f, -1e4f}, {5, 7}), 6);
  EXPECT_EQ(answer(GetParam(), {1e4f, 1e4f}, {5, 7}), 6);
}

TEST_P(AttentionTest, FirstTileAllMinusInfinityThenNegativeLogits) {
  // A finite stand-in for -inf, or a maximum that starts at 0, gives weight to the first tile.
  std::vector<float> logits(130, -kInf);
  std::vector<float> values(130, 100);
  logits[128] = -300;
  logits[129] = -300;
  values[128] = 2;
  values[129] = 4;
  EXPECT_EQ(answer(GetParam(), logits, values), 3);
}

TEST_P(AttentionTest, AllMinusInfinityRowIsNaN) {
  // It sees keys, so it is no empty row: softmax of nothing but -inf is NaN.
  for (const size_t n : {1, 3, 64, 65, 130}) {
    EXPECT_TRUE(
        std::isnan(answer(GetParam(), std::vector<float>(n, -kInf), std::vector<float>(n, 1))));
  }
}

TEST_P(AttentionTest, PlusInfinityAndNaNScoresGiveNaN) {
  for (const float special : {kInf, kNaN}) {
    for (const size_t at : {0, 1, 63, 64, 127, 128, 129}) {
      std::vector<float> logits(130, 1);
      logits[at] = special;
      EXPECT_TRUE(std::isnan(answer(GetParam(), logits, std::vector<float>(130, 1))));
    }
  }
}

TEST_P(AttentionTest, SpecialQueryStaysInItsRow) {
  for (const float special : {kInf, -kInf, kNaN}) {
    for (const int64_t row : {0, 5, 6, 40, 79}) {
      OpCase c =
          make_case(GetParam(), {.batch = 1, .heads = 1, .q_len = 80, .head_dim = 8}, causal());
      c.inputs[0].set(row * 8 + 3, special);
      const std::vector<double> values = checked_values(c);
      for (int64_t r = 0; r < 80; ++r) {
        ASSERT_TRUE(r == row || !std::isnan(values[static_cast<size_t>(r * 8)])) << r;
      }
    }
  }
}

// K or V holds `special` from key `at` on: rows that do not see those keys keep their bits.
void expect_masked_keys_do_not_matter(DType dtype, size_t input, float special, const Sizes& s,
                                      int64_t at) {
  SCOPED_TRACE(describe(s) + " input " + std::to_string(input) + " value " +
               std::to_string(special) + " from key " + std::to_string(at));
  // Moderate scores, so that no weight vanishes in fp32 and takes an infinite value with it.
  const OpCase clean = make_case(dtype, s, causal("TOP_LEFT"), 2, 0.1f);
  OpCase c = clean;
  const int64_t dim = c.inputs[input].desc().shape[3];
  for (int64_t i = at * dim; i < c.inputs[input].desc().count(); ++i) {
    c.inputs[input].set(i, special);
  }
  const std::vector<double> want = run_oracle(clean).value.data;
  const std::vector<double> got = checked_values(c);
  for (size_t i = 0; i < static_cast<size_t>(std::min(at, s.q_len) * dim); ++i) {
    ASSERT_EQ(want[i], got[i]) << i;
  }
}

TEST_P(AttentionTest, MaskedKeysNeverMatter) {
  for (const float special : {kInf, -kInf, kNaN}) {
    for (const size_t input : {1, 2}) {
      for (const int64_t at : {1, 5, 6, 31, 64, 127, 128, 129}) {
        expect_masked_keys_do_not_matter(
            GetParam(), input, special,
            {.batch = 1, .heads = 1, .q_len = 140, .head_dim = 8, .kv_len = 150}, at);
      }
      for (const int64_t q_len : {1, 4}) {  // the path of few rows
        expect_masked_keys_do_not_matter(
            GetParam(), input, special,
            {.batch = 1, .heads = 1, .q_len = q_len, .head_dim = 16, .kv_len = 70}, q_len);
      }
    }
  }
}

TEST_P(AttentionTest, SpecialValuesReachTheRowsThatSeeThem) {
  for (const float special : {kInf, -kInf, kNaN}) {
    OpCase c = make_case(GetParam(), {.batch = 1, .heads = 1, .q_len = 70, .head_dim = 4}, causal(),
                         2, 0.1f);
    c.inputs[2].set(40 * 4 + 2, special);
    const std::vector<double> values = checked_values(c);
    EXPECT_TRUE(std::isfinite(values[39 * 4 + 2]));
    EXPECT_FALSE(std::isfinite(values[40 * 4 + 2]));
    EXPECT_TRUE(std::isfinite(values[40 * 4 + 1]));
    EXPECT_FALSE(std::isfinite(values[69 * 4 + 2]));
  }
}

// The first rows of a dense output, as bytes.
std::vector<uint8_t> leading_bytes(const HostTensor& t, int64_t elements) {
  std::vector<uint8_t> bytes = t.element_bytes();
  bytes.resize(static_cast<size_t>(elements * size_of(t.desc().dtype)));
  return bytes;
}

TEST_P(AttentionTest, RowsKeepTheirBitsWhateverTheFutureHolds) {
  for (const int64_t q_len : {2, 10, 100}) {
    SCOPED_TRACE(q_len);
    const OpCase clean =
        make_case(GetParam(), {.batch = 1, .heads = 1, .q_len = q_len, .head_dim = 16}, causal());
    OpCase poisoned = clean;
    const int64_t last = (q_len - 1) * 16;
    for (int64_t i = last; i < last + 16; ++i) {
      poisoned.inputs[1].set(i, kNaN);
      poisoned.inputs[2].set(i, kInf);
    }
    for (const KernelEntry* kernel : kernels()) {
      if (kernel->op != "attention" || !is_under_test(*kernel)) continue;
      if (!kernel->supports(make_problem(clean).problem).ok) continue;
      EXPECT_EQ(leading_bytes(run_kernel(*kernel, clean), last),
                leading_bytes(run_kernel(*kernel, poisoned), last))
          << kernel->name;
    }
  }
}

TEST_P(AttentionTest, EdgesOfTheGpuTiles) {
  // Tall tiles have 128 (fp32: 64) rows, flat ones 16; key tiles 64 or, above 128 dimensions, 32.
  for (const int64_t q_len : {15, 16, 17, 31, 33, 63, 65, 127, 128, 129}) {
    for (const int64_t kv_len : {31, 33, 64, 65, 129}) {
      expect_match(GetParam(), {.q_len = q_len, .head_dim = 8, .kv_len = kv_len}, causal());
    }
  }
  for (const int64_t kv_len : {31, 32, 33, 95, 97}) {
    expect_match(GetParam(), {.q_len = 20, .head_dim = 136, .kv_len = kv_len}, causal());
    expect_match(GetParam(), {.q_len = 2, .head_dim = 136, .kv_len = kv_len}, causal());
  }
}

TEST_P(AttentionTest, EdgesOfThePaddedHeadDimensions) {
  for (const int64_t head_dim : {8, 63, 64, 65, 72, 127, 129, 255}) {
    for (const int64_t value_dim : {int64_t{8}, int64_t{66}, head_dim}) {
      for (const int64_t q_len : {3, 18}) {
        expect_match(GetParam(),
                     {.q_len = q_len, .head_dim = head_dim, .kv_len = 37, .value_dim = value_dim},
                     causal());
      }
    }
  }
}

TEST_P(AttentionTest, AlignedRowsOfOddLength) {
  // Rows start at multiples of 16 bytes, and the last 16 bytes of a row are not all its own.
  const DType t = GetParam();
  for (const int64_t q_len : {3, 40}) {
    HostTensor q(t, {1, 2, q_len, 21}, {2 * q_len * 24, q_len * 24, 24, 1});
    HostTensor k(t, {1, 2, 70, 21}, {2 * 70 * 32, 70 * 32, 32, 1});
    HostTensor v(t, {1, 2, 70, 13}, {2 * 70 * 16, 70 * 16, 16, 1});
    q.fill_normal(1), k.fill_normal(2), v.fill_normal(3);
    expect_kernels_match_oracle({"attention", causal(), {q, k, v}});
  }
}

TEST_P(AttentionTest, OddStridesOfSingleElements) {
  // The stride of an axis of one element says nothing of where anything lies.
  const DType t = GetParam();
  HostTensor q(t, {1, 1, 1, 16}, {3, 5, 7, 1}), k(t, {1, 1, 1, 16}, {3, 5, 7, 1});
  HostTensor v(t, {1, 1, 1, 16}, {3, 5, 7, 1});
  expect_kernels_match_oracle(
      {"attention", {}, {q.fill_normal(1), k.fill_normal(2), v.fill_normal(3)}});
}

TEST_P(AttentionTest, SplitKeysOfManyRowsWithSpecialValues) {
  // Few units for a GPU: the keys are split. The last 100 keys are hidden from the first queries.
  for (const int64_t q_len : {5, 101}) {
    OpCase c = make_case(
        GetParam(),
        {.batch = 1, .heads = 4, .q_len = q_len, .head_dim = 16, .kv_heads = 2, .kv_len = 1100},
        causal(), 2, 0.1f);
    const int64_t elements = c.inputs[2].desc().count();
    c.inputs[2].set(elements - 16, kInf);           // the last key, of the second head
    c.inputs[2].set(elements - 3 * 16 + 1, -kInf);  // the last but two
    c.inputs[2].set(elements / 2 - 2 * 16, kNaN);   // the last but one, of the first head
    expect_kernels_match_oracle(c);
  }
}

TEST_P(AttentionTest, ScaleZeroOfInfiniteScoresIsNaN) {
  OpCase c = make_case(GetParam(), {.q_len = 70, .head_dim = 4, .kv_len = 70},
                       {{"scale", 0.0}, {"causal", true}});
  c.inputs[1].set(40 * 4, kInf);
  const std::vector<double> values = checked_values(c);
  EXPECT_TRUE(std::isfinite(values[39 * 4]));
  EXPECT_TRUE(std::isnan(values[40 * 4]));
}

TEST_P(AttentionTest, NegativeScaleTurnsTheOrderAround) {
  for (const int64_t q_len : {2, 40}) {
    expect_match(GetParam(), {.q_len = q_len, .head_dim = 24, .kv_len = 90}, {{"scale", -0.5}});
  }
}

// ---- how GPU kernels cut a problem ----

TEST(AttentionGridTest, EveryVisiblePairIsComputedOnce) {
  constexpr int64_t kHeads = 4, kKvHeads = 2;
  struct Case {
    int64_t q_len, kv_len, group;
    int tile_rows, tile_keys;
    int64_t slots;
    int causal;  // 0: not, 1: top left, 2: bottom right
  };
  std::vector<Case> cases;
  for (const int64_t q_len : {1, 2, 5, 9}) {
    for (const int64_t kv_len : {0, 1, 4, 7, 20}) {
      for (const int64_t group : {1, 2, 3}) {
        for (const int rows : {1, 2, 16}) {
          for (const int keys : {1, 3, 4}) {
            for (const int64_t slots : {1, 50}) {
              for (const int mask : {0, 1, 2}) {
                cases.push_back({q_len, kv_len, group, rows, keys, slots, mask});
              }
            }
          }
        }
      }
    }
  }
  for (const Case& c : cases) {
    const KeyMask mask{c.kv_len, c.causal != 0, c.causal == 2 ? c.kv_len - c.q_len : 0};
    const AttentionGrid grid = attention_grid(mask, kHeads, kKvHeads, c.group, c.q_len, c.tile_rows,
                                              c.tile_keys, c.slots, 2);
    const int64_t rows = c.q_len * c.group;
    std::vector<int64_t> keys_done(static_cast<size_t>(kHeads * rows), 0);  // in order, no gaps
    for (int64_t i = 0; i < grid.blocks(); ++i) {
      const AttentionBlock b = grid.block(i);
      ASSERT_EQ(b.unit * grid.splits + b.split, i);
      for (int local = 0; local < c.tile_rows && b.row_begin + local < rows; ++local) {
        const AttentionRow row = grid.row(b, static_cast<uint32_t>(local));
        ASSERT_EQ(row.query * c.group + row.g, b.row_begin + local);
        int64_t& done = keys_done[static_cast<size_t>((b.batch * kKvHeads + b.kv_head) * rows +
                                                      b.row_begin + local)];
        for (int64_t tile = b.tile_begin; tile < b.tile_end; ++tile) {
          const int64_t first = tile * c.tile_keys;
          const int seen = grid.visible(b, static_cast<uint32_t>(local), first, c.tile_keys);
          if (tile < b.full_tiles) {
            ASSERT_EQ(seen, c.tile_keys);
          }
          if (seen == 0) continue;
          ASSERT_EQ(done, first);
          done += seen;
        }
      }
    }
    for (int64_t r = 0; r < kHeads * rows; ++r) {
      ASSERT_EQ(keys_done[static_cast<size_t>(r)], mask.visible_keys(r % rows / c.group));
    }
  }
}

}  // namespace
}  // namespace me::testing
