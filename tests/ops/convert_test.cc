// widen and narrow against the scalar conversions of ops/base/dtype.h, bit for bit, on every vector
// target that this machine can run.
#include "ops/cpu/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>
#include <vector>

#if ME_WITH_HIGHWAY
#include <hwy/highway.h>
#endif

namespace me {
namespace {

// Calls body once for each vector target that can run here.
template <class Body>
void for_each_target(const Body& body) {
#if ME_WITH_HIGHWAY
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
#else
  body();
#endif
}

// fp32 patterns around every place where a conversion changes its mind, and random ones.
std::vector<float> interesting_floats() {
  std::vector<float> values;
  const auto add = [&](uint32_t bits) {
    for (const uint32_t sign : {0u, 0x80000000u})
      values.push_back(std::bit_cast<float>(bits | sign));
  };
  for (uint32_t half = 0; half < 0x8000; ++half) {
    // Each f16 and each bf16, the midpoint to the next one, and the neighbours of both.
    const uint32_t f16 = std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(half)));
    const uint32_t next = std::bit_cast<uint32_t>(f16_to_f32(static_cast<uint16_t>(half + 1)));
    const uint32_t f16_middle =
        std::bit_cast<uint32_t>(0.5f * (std::bit_cast<float>(f16) + std::bit_cast<float>(next)));
    for (const uint32_t bits : {f16, f16_middle & 0x7FFFFFFFu, half << 16, half << 16 | 0x8000u}) {
      add((bits - 1) & 0x7FFFFFFFu);
      add(bits);
      add((bits + 1) & 0x7FFFFFFFu);
    }
  }
  std::independent_bits_engine<std::mt19937, 32, uint32_t> random(7);
  for (int i = 0; i < 1000000; ++i) values.push_back(std::bit_cast<float>(random()));
  return values;
}

class ConvertTest : public ::testing::TestWithParam<DType> {};
class Convert16Test : public ::testing::TestWithParam<DType> {};

TEST_P(Convert16Test, WidensEveryPatternExactly) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  for_each_target([&] {
    std::vector<float> wide(halves.size());
    widen(halves.data(), GetParam(), 1, 65536, wide.data());
    int wrong = 0;
    for (size_t i = 0; i < halves.size(); ++i) {
      const float want = load_f32(halves.data(), static_cast<int64_t>(i), GetParam());
      if (std::bit_cast<uint32_t>(wide[i]) == std::bit_cast<uint32_t>(want)) continue;
      if (++wrong <= 5) ADD_FAILURE() << "pattern " << i << ": " << wide[i] << ", not " << want;
    }
    EXPECT_EQ(wrong, 0);
  });
}

TEST_P(Convert16Test, NarrowsEdgesMidpointsNaNAndRandomFloatsToNearestEven) {
  const std::vector<float> values = interesting_floats();
  for_each_target([&] {
    std::vector<uint16_t> halves(values.size());
    narrow(values.data(), static_cast<int64_t>(values.size()), halves.data(), GetParam(), 1);
    int wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t want =
          GetParam() == DType::kF16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
      if (halves[i] == want) continue;
      if (++wrong <= 5) {
        ADD_FAILURE() << std::hex << "bits " << std::bit_cast<uint32_t>(values[i]) << ": "
                      << halves[i] << ", not " << want;
      }
    }
    EXPECT_EQ(wrong, 0);
  });
}

// Lengths around the vectors and the gather buffer, strides 0 to 3, nothing written past the end
// or between the elements.
TEST_P(ConvertTest, EveryLengthAndStrideWritesItsElementsOnly) {
  constexpr int64_t kMost = 520;
  for_each_target([&] {
    for (const int64_t stride : {0, 1, 2, 3}) {
      for (const int64_t n : {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 255, 256, 257, 513}) {
        SCOPED_TRACE("stride " + std::to_string(stride) + ", length " + std::to_string(n));
        // Exactly as long as the row, so that the sanitizer sees a read past its end.
        const int64_t span = n == 0 ? 0 : (n - 1) * stride + 1;
        std::vector<uint8_t> from(static_cast<size_t>(span * size_of(GetParam())));
        for (int64_t i = 0; i < span; ++i) {
          store_f32(from.data(), i, GetParam(), 0.37f * static_cast<float>(i));
        }
        std::vector<float> wide(kMost, -1.0f);
        widen(from.data(), GetParam(), stride, n, wide.data());
        for (int64_t i = 0; i < kMost; ++i) {
          const float want = i < n ? load_f32(from.data(), i * stride, GetParam()) : -1.0f;
          ASSERT_EQ(wide[static_cast<size_t>(i)], want) << "element " << i;
        }
        if (stride == 0) continue;
        const std::vector<float> source(wide.begin(), wide.begin() + n);
        std::vector<uint8_t> to(static_cast<size_t>((span + 8) * size_of(GetParam())), 0xFF);
        const std::vector<uint8_t> untouched = to;
        narrow(source.data(), n, to.data(), GetParam(), stride);
        for (int64_t i = 0; i < span + 8; ++i) {
          const bool written = i < span && i % stride == 0;
          const std::vector<uint8_t>& want = written ? from : untouched;
          for (int64_t byte = i * size_of(GetParam()); byte < (i + 1) * size_of(GetParam());
               ++byte) {
            ASSERT_EQ(to[static_cast<size_t>(byte)], want[static_cast<size_t>(byte)])
                << "element " << i;
          }
        }
      }
    }
  });
}

std::string case_name(const ::testing::TestParamInfo<DType>& param) {
  return std::string(name_of(param.param));
}
INSTANTIATE_TEST_SUITE_P(Types, ConvertTest,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kBF16), case_name);
INSTANTIATE_TEST_SUITE_P(Types, Convert16Test, ::testing::Values(DType::kF16, DType::kBF16),
                         case_name);

}  // namespace
}  // namespace me
