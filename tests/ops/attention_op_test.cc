// Attention without its kernels: the mask's arithmetic, attributes, inference and cost.
#include <limits>

#include "ops/attention/attention.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

// Calls body(mask, q_len) for every small problem: causal under every offset from below all keys to
// past them, and not causal.
template <class Body>
void for_every_small_mask(const Body& body) {
  for (int64_t q_len = 0; q_len <= 9; ++q_len) {
    for (int64_t kv_len = 0; kv_len <= 9; ++kv_len) {
      for (int64_t offset = -11; offset <= 11; ++offset) body(KeyMask{kv_len, true, offset}, q_len);
      body(KeyMask{kv_len, false, 0}, q_len);
    }
  }
}

bool sees(const KeyMask& mask, int64_t query, int64_t key) {
  return key < mask.kv_len && (!mask.causal || key <= query + mask.offset);
}

TEST(KeyMaskTest, VisibleKeysAreThoseTheDefinitionSays) {
  for_every_small_mask([](const KeyMask& mask, int64_t q_len) {
    double pairs = 0;
    for (int64_t query = 0; query < q_len; ++query) {
      int64_t n = 0;
      for (int64_t key = 0; key < mask.kv_len; ++key) {
        if (sees(mask, query, key)) {
          ASSERT_EQ(key, n) << "the keys a query sees are not the first ones";
          ++n;
        }
      }
      ASSERT_EQ(mask.visible_keys(query), n)
          << "query " << query << " keys " << mask.kv_len << " offset " << mask.offset;
      pairs += static_cast<double>(n);
    }
    ASSERT_EQ(mask.visible_pairs(q_len), pairs)
        << "queries " << q_len << " keys " << mask.kv_len << " offset " << mask.offset;
  });
}

TEST(KeyMaskTest, KeyTilesAreThoseThatHoldAVisibleKey) {
  for_every_small_mask([](const KeyMask& mask, int64_t q_len) {
    for (int64_t tile_keys = 1; tile_keys <= 5; ++tile_keys) {
      const int64_t tiles = (mask.kv_len + tile_keys - 1) / tile_keys;
      for (int64_t begin = 0; begin < q_len; ++begin) {
        for (int64_t end = begin + 1; end <= q_len; ++end) {
          int64_t needed = 0;
          int64_t full = 0;
          for (int64_t tile = 0; tile < tiles; ++tile) {
            bool any = false;
            bool all = true;
            for (int64_t query = begin; query < end; ++query) {
              for (int64_t key = tile * tile_keys; key < (tile + 1) * tile_keys; ++key) {
                any |= sees(mask, query, key);
                all &= sees(mask, query, key);
              }
            }
            needed += any;
            full += all;
          }
          ASSERT_EQ(mask.key_tiles(end, tile_keys), needed)
              << begin << " to " << end << " keys " << mask.kv_len << " offset " << mask.offset;
          ASSERT_EQ(mask.full_key_tiles(begin, tile_keys), full)
              << begin << " to " << end << " keys " << mask.kv_len << " offset " << mask.offset;
        }
      }
    }
  });
}

TEST(KeyMaskTest, LongSequencesStayExact) {
  const int64_t n = int64_t{1} << 40;
  const KeyMask mask{n, true, 0};
  EXPECT_EQ(mask.visible_keys(n - 1), n);
  EXPECT_EQ(mask.key_tiles(n, 64), n / 64);
  EXPECT_DOUBLE_EQ(mask.visible_pairs(n), 0x1p79 + 0x1p39);
  EXPECT_DOUBLE_EQ((KeyMask{n, false, 0}).visible_pairs(n), 0x1p80);
}

Error parse_error(const AttrMap& attrs) {
  auto parsed = kAttentionOp.parse(attrs);
  return parsed.ok() ? Error{} : parsed.error();
}

TEST(AttentionParseTest, ScaleIsAnyFiniteNumber) {
  for (const double scale : {0.0, -1.0, 1e-300, 1e300}) {
    EXPECT_EQ(parse_error({{"scale", scale}}).message, "") << scale;
  }
  for (const double scale :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    const Error error = parse_error({{"scale", scale}});
    EXPECT_EQ(error.field, "attention.scale");
    EXPECT_NE(error.message.find("expected a finite number"), std::string::npos) << error.message;
  }
}

TEST(AttentionParseTest, CausalOffsetNeedsCausal) {
  EXPECT_EQ(parse_error({{"causal", true}}).message, "");
  for (const char* offset : {"TOP_LEFT", "BOTTOM_RIGHT"}) {
    EXPECT_EQ(parse_error({{"causal", true}, {"causal_offset", std::string(offset)}}).message, "");
    EXPECT_EQ(parse_error({{"causal_offset", std::string(offset)}}).field,
              "attention.causal_offset");
    EXPECT_EQ(parse_error({{"causal", false}, {"causal_offset", std::string(offset)}}).field,
              "attention.causal_offset");
  }
  EXPECT_EQ(parse_error({{"causal", true}, {"causal_offset", std::string("LEFT")}}).field,
            "attention.causal_offset");
}

std::string error_of(const Dims& q, const Dims& k, const Dims& v) {
  return infer_error("attention", {}, {{DType::kF32, q}, {DType::kF32, k}, {DType::kF32, v}});
}

TEST(AttentionInferTest, AcceptsWhatTheOpDefines) {
  EXPECT_EQ(error_of({2, 6, 3, 8}, {2, 3, 5, 8}, {2, 3, 5, 7}), "");
  EXPECT_EQ(error_of({2, 6, 3, 256}, {2, 1, 5, 256}, {2, 1, 5, 1}), "");
  EXPECT_EQ(error_of({0, 0, 0, 1}, {0, 0, 0, 1}, {0, 0, 0, 1}), "");
  EXPECT_EQ(error_of({1, 0, 2, 4}, {1, 3, 2, 4}, {1, 3, 2, 4}), "");
}

TEST(AttentionInferTest, RefusesWhatDoesNotFit) {
  const Dims q{2, 6, 3, 8};
  const Dims k{2, 3, 5, 8};
  EXPECT_NE(error_of({6, 3, 8}, k, k), "");                // rank
  EXPECT_NE(error_of(q, {2, 3, 5, 8, 1}, k), "");          // rank
  EXPECT_NE(error_of({3, 6, 3, 8}, k, k), "");             // batch
  EXPECT_NE(error_of(q, k, {1, 3, 5, 8}), "");             // batch
  EXPECT_NE(error_of({2, 4, 3, 8}, k, k), "");             // heads no multiple
  EXPECT_NE(error_of(q, {2, 0, 5, 8}, {2, 0, 5, 8}), "");  // heads without keys' heads
  EXPECT_NE(error_of(q, k, {2, 2, 5, 8}), "");             // heads of k and v
  EXPECT_NE(error_of(q, k, {2, 3, 4, 8}), "");             // lengths of k and v
  EXPECT_NE(error_of(q, {2, 3, 5, 7}, k), "");             // head_dim of q and k
  EXPECT_NE(error_of({1, 1, 3, 257}, {1, 1, 3, 257}, {1, 1, 3, 8}), "");  // head_dim too large
  EXPECT_NE(error_of({1, 1, 3, 8}, {1, 1, 3, 8}, {1, 1, 3, 257}), "");
  EXPECT_NE(error_of({1, 1, 3, 0}, {1, 1, 3, 0}, {1, 1, 3, 8}), "");  // head_dim zero
  EXPECT_NE(error_of({1, 1, 3, 8}, {1, 1, 3, 8}, {1, 1, 3, 0}), "");
  EXPECT_NE(infer_error("attention", {}, {{DType::kF32, q}, {DType::kF32, k}, {DType::kF16, k}}),
            "");
}

TEST(AttentionInferTest, SaysFoundAndExpectedAndBlamesTheInputs) {
  const std::string error = error_of({2, 4, 3, 8}, {2, 3, 5, 8}, {2, 3, 5, 8});
  EXPECT_NE(error.find("attention.inputs"), std::string::npos) << error;
  EXPECT_NE(error.find("found q f32[2, 4, 3, 8], k f32[2, 3, 5, 8]"), std::string::npos) << error;
  EXPECT_NE(error.find("expected the heads of q to be a multiple"), std::string::npos) << error;
}

TEST(AttentionInferTest, UnknownDimensionsPass) {
  constexpr int64_t kAny = kUnknownDim;
  EXPECT_EQ(error_of({kAny, kAny, kAny, kAny}, {kAny, kAny, kAny, kAny}, {kAny, kAny, kAny, kAny}),
            "");
  const TensorType q{DType::kF16, {kAny, 6, kAny, 8}};
  const TensorType k{DType::kF16, {kAny, kAny, 5, kAny}};
  const TensorType v{DType::kF16, {2, 3, kAny, 7}};
  auto types = kAttentionOp.infer(AttentionAttrs{}, std::vector{q, k, v}, {});
  ASSERT_TRUE(types.ok()) << types.error().to_string();
  EXPECT_EQ(to_string(types.value().at(0)), "f16[2, 6, ?, 7]");
}

TEST(AttentionWorkTest, CountsVisiblePairsOnly) {
  HostTensor q(DType::kF32, {2, 4, 3, 8}), k(DType::kF32, {2, 2, 5, 8}),
      v(DType::kF32, {2, 2, 5, 6});
  const PreparedCase full = make_problem({"attention", {}, {q, k, v}});
  const PreparedCase causal = make_problem({"attention", {{"causal", true}}, {q, k, v}});
  // Each pair 2·8 + 2·6 + 2, each output one division; causal queries see 3, 4 and 5 keys.
  EXPECT_EQ(kAttentionOp.work(full.problem).flops, 2 * 4 * 15 * 30 + 2 * 4 * 3 * 6);
  EXPECT_EQ(kAttentionOp.work(causal.problem).flops, 2 * 4 * 12 * 30 + 2 * 4 * 3 * 6);
  EXPECT_EQ(kAttentionOp.work(full.problem).bytes, 4 * (192 + 160 + 120 + 144));
}

}  // namespace
}  // namespace me::testing
