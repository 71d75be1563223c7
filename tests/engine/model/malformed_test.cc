// What load_model refuses, and how. Most cases are the files of tests/malformed, with what each
// error must say in expected.txt; those that a checkout cannot hold are made here.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "engine/io/safetensors.h"
#include "engine/model/loader.h"
#include "tests/engine/temp_folder.h"

namespace me::testing {
namespace {

namespace fs = std::filesystem;

const std::string kFolder = std::string(ME_SOURCE_DIR) + "/tests/malformed/";

// One line that a terminal takes as text, about this file.
void expect_refused(const std::string& path, std::string_view substring) {
  const auto graph = load_model(path);
  ASSERT_FALSE(graph.ok()) << path << " loads";
  EXPECT_EQ(graph.error().kind, ErrorKind::kInvalid) << path;
  EXPECT_EQ(graph.error().file, path);
  const std::string text = graph.error().to_string();
  EXPECT_NE(text.find(substring), std::string::npos) << text << "\nlacks\n" << substring;
  EXPECT_TRUE(is_utf8(text)) << path;
  for (const char c : text) {
    EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) << text;
  }
  EXPECT_EQ(text.find("\xC2\x9B"), std::string::npos) << text;
  EXPECT_LT(text.size(), path.size() + 1000);
}

std::string one_weight(std::string_view type, std::string_view data) {
  return "format_version: 1 graph {\n weights { name: \"w\" " + std::string(type) + " " +
         std::string(data) + " }\n outputs { name: \"w\" }\n}\n";
}

std::string external(std::string_view file) {
  return one_weight("dtype: F32 dims: 2", "external { file: \"" + std::string(file) + "\" }");
}

TEST(Malformed, EveryFileIsRefusedForItsReason) {
  std::set<std::string> covered;
  std::ifstream table(kFolder + "expected.txt");
  for (std::string line; std::getline(table, line);) {
    const size_t tab = line.find('\t');
    ASSERT_NE(tab, std::string::npos) << line;
    const std::string name = line.substr(0, tab);
    covered.insert(name);
    SCOPED_TRACE(name);
    ASSERT_TRUE(fs::exists(kFolder + name));
    expect_refused(kFolder + name, line.substr(tab + 1));
  }
  EXPECT_GE(covered.size(), 45u);
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".txtpb") && !name.ends_with(".pb")) continue;
    EXPECT_TRUE(covered.contains(name)) << name << " is not in expected.txt";
  }
}

TEST(Malformed, TruncatedAtEveryByte) {
  const TempFolder folder;
  const std::string text = folder.write("m.txtpb", R"(
    format_version: 1 producer: "p" doc: "d"
    graph {
      name: "g"
      inputs { name: "x" dtype: F32 dims { symbol: "n" } dims { size: 3 } }
      weights { name: "w" dtype: F32 dims: [1, 3] numbers { values: [1, 2, 3] } }
      weights { name: "r" dtype: F16 dims: [1, 3] raw: "abcdef" }
      nodes { name: "a" inputs: ["x", "x"] outputs: "y" add {} }
      nodes { name: "s" inputs: "y" outputs: "z" slice { axis: 1 start: -2 end: 3 } }
      outputs { name: "z" dtype: F32 dims { symbol: "n" } dims { size: 2 } }
    })");
  ASSERT_TRUE(convert_model(text, folder.path("m.pb")).ok());
  const std::string whole = read_bytes(folder.path("m.pb"));
  ASSERT_TRUE(load_model(folder.path("m.pb")).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    expect_refused(folder.write("cut.pb", std::string_view(whole).substr(0, size)), ": ");
  }
}

// Whatever a flipped bit makes of a model, loading it is an error or a graph.
TEST(Malformed, EveryBitFlipped) {
  const TempFolder folder;
  const std::string text = folder.write("m.txtpb", R"(
    format_version: 1
    graph {
      inputs { name: "x" dtype: F32 dims { symbol: "n" } dims { size: 4 } }
      weights { name: "w" dtype: BF16 dims: [2, 2] numbers { values: [1, -2, 3, 0.1] } }
      nodes { name: "r" inputs: "x" outputs: "y" reshape { dims { size: -1 } dims { size: 2 } } }
      nodes { name: "t" inputs: "w" outputs: "v" transpose { permutation: [1, 0] } }
      nodes { name: "s" inputs: "v" outputs: "z" slice { axis: -1 start: 1 step: 2 } }
      nodes { name: "b" inputs: "z" outputs: "u" broadcast { dims { size: 2 } dims { size: 9 } } }
      outputs { name: "y" } outputs { name: "u" }
    })");
  ASSERT_TRUE(convert_model(text, folder.path("m.pb")).ok());
  const std::string whole = read_bytes(folder.path("m.pb"));
  int refused = 0;
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const auto graph = load_model(folder.write("flipped.pb", flipped));
    if (graph.ok()) continue;
    ++refused;
    EXPECT_EQ(graph.error().kind, ErrorKind::kInvalid);
  }
  EXPECT_GT(refused, static_cast<int>(whole.size()));
}

TEST(Malformed, TextNested10000Deep) {
  const TempFolder folder;
  for (const char* open : {"graph {", "graph: {", "graph <", "graph [", "graph { nodes {",
                           "graph { nodes { unknown {", "[a.b/c] {"}) {
    std::string text;
    for (int i = 0; i < 10000; ++i) text += open;
    expect_refused(folder.write("deep.txtpb", text), "line 1, column ");
  }
}

TEST(Malformed, UnusableFiles) {
  const TempFolder folder;
  expect_refused(folder.path("none.pb"), "none.pb");
  expect_refused(folder.write("model.bin", ""),
                 "expected a name that ends in .txtpb (text) or .pb");
  ASSERT_EQ(::mkdir(folder.path("folder.pb").c_str(), 0700), 0);
  expect_refused(folder.path("folder.pb"), "folder.pb");
  ASSERT_EQ(::mkfifo(folder.path("fifo.pb").c_str(), 0600), 0);
  expect_refused(folder.path("fifo.pb"), "fifo.pb");
}

TEST(Malformed, ModelFileOver64MiB) {
  const TempFolder folder;
  const std::string path = folder.write("large.pb", "");
  fs::resize_file(path, (int64_t{64} << 20) + 1);
  expect_refused(path, "large.pb");
}

TEST(Malformed, ExternalFileThatIsALinkOrNoFile) {
  const TempFolder folder;
  const std::vector<float> data{1, 2};
  TensorView tensor;
  static_cast<TensorDesc&>(tensor) = dense(DType::kF32, {2});
  tensor.data = const_cast<float*>(data.data());
  ASSERT_EQ(::mkdir(folder.path("real").c_str(), 0700), 0);
  ASSERT_TRUE(write_safetensors(folder.path("real/w.safetensors"), {{"w", tensor}}).ok());
  ASSERT_TRUE(load_model(folder.write("good.txtpb", external("real/w.safetensors"))).ok());

  const std::string where = "graph.weights[0].external.file: line 2, column ";
  fs::create_symlink("real/w.safetensors", folder.path("link.safetensors"));
  expect_refused(folder.write("m.txtpb", external("link.safetensors")), where);
  fs::create_directory_symlink("real", folder.path("linked"));
  expect_refused(folder.write("m.txtpb", external("linked/w.safetensors")), where);
  ASSERT_EQ(::mkdir(folder.path("folder.safetensors").c_str(), 0700), 0);
  expect_refused(folder.write("m.txtpb", external("folder.safetensors")), where);
  ASSERT_EQ(::mkfifo(folder.path("fifo.safetensors").c_str(), 0600), 0);
  expect_refused(folder.write("m.txtpb", external("fifo.safetensors")), where);
  fs::create_hard_link(folder.path("real/w.safetensors"), folder.path("hard.safetensors"));
  expect_refused(folder.write("m.txtpb", external("hard.safetensors")), where);
}

TEST(Malformed, ExternalFileThatIsNoSafetensors) {
  const TempFolder folder;
  const std::string model = folder.write("m.txtpb", external("w.safetensors"));
  folder.write("w.safetensors", "");
  expect_refused(model, "\"w.safetensors\": ");
  folder.write("w.safetensors", std::string_view("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
  expect_refused(model, "\"w.safetensors\": ");
  folder.write("w.safetensors", std::string_view("\x04\0\0\0\0\0\0\0{\"\x1b\"", 12));
  expect_refused(model, "\"w.safetensors\": ");
}

TEST(Malformed, InlineWeightOver65536Elements) {
  const TempFolder folder;
  const auto raw = [](size_t n) { return "raw: \"" + std::string(2 * n, 'a') + "\""; };
  EXPECT_TRUE(
      load_model(folder.write("m.txtpb", one_weight("dtype: F16 dims: 65536", raw(65536)))).ok());
  expect_refused(folder.write("m.txtpb", one_weight("dtype: F16 dims: 65537", raw(65537))),
                 "graph.weights[0].raw: line 2, column 45: found 65537 elements, expected at most "
                 "65536 inline");
  std::string numbers = "0";
  for (int i = 0; i < 65536; ++i) numbers += ",0";
  expect_refused(folder.write("m.txtpb", one_weight("dtype: F16 dims: 65537",
                                                    "numbers { values: [" + numbers + "] }")),
                 "found 65537 elements, expected at most 65536 inline");
}

TEST(Malformed, MoreThan100000NodesOrWeights) {
  const TempFolder folder;
  std::string nodes = "format_version: 1 graph {\n";
  std::string weights = nodes;
  for (int i = 0; i <= 100000; ++i) {
    nodes += "nodes{}";
    weights += "weights{}";
  }
  expect_refused(folder.write("m.txtpb", nodes + "}"),
                 "graph.nodes: line 2, column 1: found 100001, expected at most 100000");
  expect_refused(folder.write("m.txtpb", weights + "}"),
                 "graph.weights: line 2, column 1: found 100001, expected at most 100000");
}

// A few bytes each on disk, and a hundred each as messages.
TEST(Malformed, MillionsOfEmptyMessages) {
  const TempFolder folder;
  std::string nodes;
  for (int i = 0; i < (5 << 20); ++i) nodes += std::string_view("\x22\0", 2);
  std::string length;
  for (size_t n = nodes.size(); n > 0; n >>= 7) {
    length += static_cast<char>((n & 0x7F) | (n >= 0x80 ? 0x80 : 0));
  }
  expect_refused(folder.write("m.pb", "\x08\x01\x22" + length + nodes),
                 "found more than 4194304 repeated messages and strings");
}

}  // namespace
}  // namespace me::testing
