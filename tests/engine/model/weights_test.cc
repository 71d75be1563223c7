// How load_model reads weights: rounding, raw bytes, tensors of a file beside the model.
#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/engine/model/model_test.h"

namespace me::testing {
namespace {

std::vector<uint16_t> words_of(const Value& value) {
  std::vector<uint16_t> words(value.data.size() / 2);
  if (!words.empty()) std::memcpy(words.data(), value.data.data(), value.data.size());
  return words;
}

TEST(Weights, NumbersAreRoundedOnceToNearestEven) {
  const TempFolder folder;
  // Each lies just beside a midpoint of the 16-bit type, and at it in fp32: rounding twice is
  // wrong.
  const Graph graph = load(folder.write(
      "m.txtpb",
      with_weights({
          "dtype: F16 dims: 6 numbers { values: [1.00048828125000001e0, 1.0004882812500002, "
          "1.00146484375, 65519.99999999999, 65520, -5.9604644775390625e-8] }",
          "dtype: BF16 dims: 6 numbers { values: [1.00390625, 1.0039062500000002, 1.01171875, "
          "1.0117187499999998, -1e-41, 1e39] }",
          "dtype: F32 dims: 4 numbers { values: [0.1, 1.00000005960464477, 1.0000000596046450, "
          "1e-46] }",
          "dtype: F16 dims: 3 numbers { values: [nan, inf, -inf] }",
      })));
  EXPECT_EQ(words_of(graph.values[0]),
            (std::vector<uint16_t>{0x3C00, 0x3C01, 0x3C02, 0x7BFF, 0x7C00, 0x8001}));
  EXPECT_EQ(words_of(graph.values[1]),
            (std::vector<uint16_t>{0x3F80, 0x3F81, 0x3F82, 0x3F81, 0x8000, 0x7F80}));
  EXPECT_EQ(floats_of(graph.values[2]), (std::vector<float>{0.1f, 1.0f, 0x1.000002p0f, 0.0f}));
  const std::vector<uint16_t> special = words_of(graph.values[3]);
  EXPECT_TRUE(std::isnan(f16_to_f32(special[0])));
  EXPECT_EQ(special[1], 0x7C00);
  EXPECT_EQ(special[2], 0xFC00);
}

TEST(Weights, RawBytesAreTakenAsTheyAre) {
  const TempFolder folder;
  const Graph graph = load(
      folder.write("m.txtpb", with_weights({R"(dtype: F16 dims: [1, 2] raw: "\x01\x02\xff\x7f")",
                                            R"(dtype: F32 dims: [0, 2] raw: "")"})));
  EXPECT_EQ(words_of(graph.values[0]), (std::vector<uint16_t>{0x0201, 0x7FFF}));
  EXPECT_EQ(graph.values[1].data.size(), 0u);
}

TEST(Weights, ExternalOnesAreMappedAndOutliveTheLoader) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path("sub"));
  const std::vector<float> a{1, 2, 3, 4};
  const std::vector<uint16_t> b{0x3C00, 0xBC00};
  ASSERT_TRUE(write_safetensors(folder.path("sub/w.safetensors"),
                                {tensor_of("w0", DType::kF32, {2, 2}, a.data()),
                                 tensor_of("other", DType::kF16, {2}, b.data())})
                  .ok());
  const std::string file = R"(external { file: "sub/w.safetensors")";
  Graph graph =
      load(folder.write("m.txtpb", with_weights({
                                       "dtype: F32 dims: [2, 2] " + file + "}",
                                       "dtype: F16 dims: 2 " + file + " tensor: \"other\" }",
                                       "dtype: F32 dims: [2, 2] " + file + " tensor: \"w0\" }",
                                   })));
  std::filesystem::remove_all(folder.path("sub"));
  const Graph copy = graph;
  graph = {};
  EXPECT_EQ(floats_of(copy.values[0]), a);
  EXPECT_EQ(words_of(copy.values[1]), b);
  EXPECT_EQ(copy.values[0].data.data(), copy.values[2].data.data()) << "one file, mapped twice";
}

TEST(Weights, ExternalOnesAreFoundBesideTheModelWhateverTheWorkingFolder) {
  const TempFolder folder;
  const float one = 1;
  ASSERT_TRUE(
      write_safetensors(folder.path("w.safetensors"), {tensor_of("w0", DType::kF32, {1}, &one)})
          .ok());
  folder.write("m.txtpb",
               with_weights({R"(dtype: F32 dims: 1 external { file: "w.safetensors" })"}));
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path(""));
  EXPECT_EQ(floats_of(load("m.txtpb").values.at(0)), std::vector<float>{1});
  std::filesystem::current_path("/");
  EXPECT_EQ(floats_of(load(folder.path("m.txtpb")).values.at(0)), std::vector<float>{1});
  std::filesystem::current_path(before);
}

TEST(Weights, ExternalOnesThatLieAskewAreCopied) {
  const TempFolder folder;
  // A header of 3 bytes past a multiple of 8 puts every element off its alignment.
  std::string header = R"({"w0":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  while (header.size() % 8 != 3) header += ' ';
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  const std::vector<float> data{1.5f, -2.5f};
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(data.data()), 8);
  folder.write("w.safetensors", bytes);
  const Graph graph = load(folder.write(
      "m.txtpb", with_weights({R"(dtype: F32 dims: 2 external { file: "w.safetensors" })"})));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(graph.values.at(0).data.data()) % 4, 0u);
  EXPECT_EQ(floats_of(graph.values[0]), data);
}

}  // namespace
}  // namespace me::testing
