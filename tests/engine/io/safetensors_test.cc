// .safetensors files: what the safetensors package writes is read, all else is refused.
#include "engine/io/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "io_test.h"

namespace me::testing {
namespace {

double value_of(const SafetensorsFile::Tensor& tensor, int64_t i) {
  return Array{tensor.type, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()}}.get(i);
}

TEST(SafetensorsTest, ReadsWhatThePackageWrites) {
  const auto file = SafetensorsFile::open(fixture("all.safetensors"));
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  const std::vector<std::pair<std::string, ArrayType>> expected = {
      {"f4", ArrayType::kF32}, {"f2", ArrayType::kF16}, {"bf16", ArrayType::kBF16},
      {"f8", ArrayType::kF64}, {"i8", ArrayType::kI64}, {"i4", ArrayType::kI32},
      {"i1", ArrayType::kI8},  {"u1", ArrayType::kU8},  {"b1", ArrayType::kBool}};
  EXPECT_EQ(file.value()->tensors().size(), expected.size());
  for (const auto& [name, type] : expected) {
    SCOPED_TRACE(name);
    const auto* tensor = file.value()->find(name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->type, type);
    EXPECT_EQ(tensor->shape, (Dims{2, 3}));
    ASSERT_EQ(static_cast<int64_t>(tensor->bytes.size()), 6 * size_of(type));
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(value_of(*tensor, i), element(type, i));
  }
  EXPECT_EQ(file.value()->find("__metadata__"), nullptr);
  EXPECT_EQ(file.value()->find("f"), nullptr);
}

TEST(SafetensorsTest, EmptyTensorsScalarsAndNoTensorAtAll) {
  const auto file = SafetensorsFile::open(fixture("shapes.safetensors"));
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, Dims>>{{"rank 0", {}},
                                                 {"rank 8", {1, 2, 1, 1, 3, 1, 1, 1}},
                                                 {"empty", {0, 3}},
                                                 {"also \"empty\"", {2, 0}}}) {
    const auto* tensor = file.value()->find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->shape, shape);
    EXPECT_EQ(static_cast<int64_t>(tensor->bytes.size()), count(shape) * size_of(tensor->type));
  }
  const auto nothing = SafetensorsFile::open(fixture("nothing.safetensors"));
  ASSERT_TRUE(nothing.ok()) << nothing.error().to_string();
  EXPECT_TRUE(nothing.value()->tensors().empty());
}

// A file of this header and this many bytes of data.
std::string safetensors(const std::string& header, size_t data_bytes = 8) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\1');
}

// {"a": entry} around these fields.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}
const std::string kGood = entry("\"F32\"", "[2]", "[0,8]");

class SafetensorsHeaderTest : public ::testing::Test {
 protected:
  void refuses(const std::string& content, const std::string& part) const {
    SCOPED_TRACE(content.substr(0, 200));
    const std::string path = folder_.write("x.safetensors", content);
    expect_error(SafetensorsFile::open(path), ErrorKind::kInvalid, path, part);
  }
  void refuses_header(const std::string& header, const std::string& part) const {
    refuses(safetensors(header), part);
  }
  void refuses_entry(const std::string& text, const std::string& part) const {
    refuses_header("{\"a\\n\":" + text + "}", part);
    refuses_header("{\"a\\n\":" + text + "}", "tensor \"a\\n\": ");
  }
  void accepts_header(const std::string& header, size_t data_bytes = 8) const {
    SCOPED_TRACE(header.substr(0, 200));
    const auto file =
        SafetensorsFile::open(folder_.write("x.safetensors", safetensors(header, data_bytes)));
    ASSERT_TRUE(file.ok()) << file.error().to_string();
  }

  const TempFolder folder_;
};

TEST_F(SafetensorsHeaderTest, GoodVariantsAreRead) {
  accepts_header("{\"a\":" + kGood + "}");
  accepts_header("{\"a\":" + kGood + "}    ");
  accepts_header("{\"a\": " + kGood + ", \"__metadata__\": {}}");
  accepts_header("{\"__metadata__\":{\"dtype\":\"x\",\"__metadata__\":\"\"},\"\":" + kGood + "}");
  accepts_header("{\"a\":" + entry("\"U8\"", "[3]", "[5,8]") +
                 ",\"b\":" + entry("\"U8\"", "[5]", "[0,5]") +
                 ",\"c\":" + entry("\"F64\"", "[0]", "[5,5]") + "}");
}

TEST_F(SafetensorsHeaderTest, LengthThatLies) {
  refuses("", "found 0 bytes, expected at least 8");
  refuses(std::string(7, '\0'), "found 7 bytes");
  refuses(std::string(8, '\0'), "does not start with {");
  std::string file = safetensors("{\"a\":" + kGood + "}");
  for (const uint64_t length :
       {uint64_t{file.size()} - 7, uint64_t{100'000'001}, uint64_t{1} << 63, ~uint64_t{0}}) {
    std::memcpy(file.data(), &length, 8);
    refuses(file, "found a header of");
  }
  const uint64_t shorter = file.size() - 8 - 9;
  std::memcpy(file.data(), &shorter, 8);
  refuses(file, "not JSON");
  const uint64_t longer = file.size() - 8 - 7;  // takes a byte of the data
  std::memcpy(file.data(), &longer, 8);
  refuses(file, "inside the 7 bytes of data");
}

TEST_F(SafetensorsHeaderTest, GarbageInsteadOfJson) {
  refuses_header("[]", "does not start with {");
  refuses_header(" {}", "does not start with {");
  refuses_header("\xef\xbb\xbf{}", "does not start with {");
  refuses_header("{", "not JSON");
  refuses_header("{\"a\":" + kGood + ",}", "not JSON");
  refuses_header("{\"a\":" + kGood + "}}", "not JSON");
  refuses_header("{\"a\":" + kGood + "} x", "not JSON");
  refuses_header("{\"a\":" + kGood + "}// comment", "not JSON");
  refuses_header("{'a':" + kGood + "}", "not JSON");
  refuses_header("{\"\xff\":" + kGood + "}", "not JSON");
  refuses_header("{\"\\ud800\":" + kGood + "}", "not JSON");
  refuses_header("{\"a\":" + entry("\"F32\"", "[1e999]", "[0,8]") + "}", "not JSON");
}

TEST_F(SafetensorsHeaderTest, NulDoesNotHideWhatFollows) {
  refuses_header("{\"a\":" + kGood + "}" + std::string(1, '\0') + "{\"hidden\":1}", "NUL");
}

TEST_F(SafetensorsHeaderTest, DeepNesting) {
  refuses_header("{\"a\":" + entry("\"F32\"", "[[2]]", "[0,8]") + "}", "shape holds");
  refuses_header("{\"a\":{\"dtype\":{\"dtype\":", "dtype is not a string");
  const std::string deep(2'000'000, '[');
  refuses_header(deep, "does not start with {");
  refuses_header("{\"a\":" + deep, "expected an object");
  refuses_header("{\"__metadata__\":{\"a\":" + deep, "other than strings");
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += "\"a\":{";
  refuses_header(objects, "expected dtype, shape and data_offsets");
}

TEST_F(SafetensorsHeaderTest, KeyTwice) {
  refuses_header("{\"a\":" + kGood + ",\"a\":" + kGood + "}", "the key \"a\" twice");
  refuses_header("{\"a\":" + kGood + ",\"\\u0061\":" + kGood + "}", "the key \"a\" twice");
  refuses_header("{\"__metadata__\":{},\"__metadata__\":{}}", "\"__metadata__\" twice");
  refuses_header("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", "metadata key \"k\" twice");
  refuses_entry(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})", "dtype twice");
  refuses_entry(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})", "shape twice");
  refuses_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"data_offsets":[0,8]})",
                "data_offsets twice");
}

TEST_F(SafetensorsHeaderTest, MetadataThatIsNoMapOfStrings) {
  refuses_header("{\"__metadata__\":null}", "__metadata__ is not an object");
  refuses_header("{\"__metadata__\":\"x\"}", "__metadata__ is not an object");
  refuses_header("{\"__metadata__\":{\"k\":1}}", "other than strings");
  refuses_header("{\"__metadata__\":{\"k\":{}}}", "other than strings");
  std::string many = "{\"__metadata__\":{";
  for (int i = 0; i <= 100'000; ++i) many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
  refuses_header(many + "}}", "over 100000 keys of metadata");
}

TEST_F(SafetensorsHeaderTest, EntryThatIsNoTensor) {
  for (const std::string value : {"null", "true", "1", "-1", "1.5", "\"F32\"", "[]"}) {
    refuses_entry(value, "expected an object");
  }
  refuses_entry("{}", "expected dtype, shape and data_offsets");
  refuses_entry(R"({"dtype":"F32","shape":[2]})", "expected dtype, shape and data_offsets");
  refuses_entry(R"({"shape":[2],"data_offsets":[0,8]})", "expected dtype");
  refuses_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x\u001b":1})",
                R"(the key "x\x1b")");
}

TEST_F(SafetensorsHeaderTest, DtypeUnknown) {
  for (const std::string dtype : {"", "f32", "F32 ", "F8_E4M3", "U64", "C64", "float32"}) {
    refuses_entry(entry("\"" + dtype + "\"", "[2]", "[0,8]"), "found dtype \"" + dtype + "\"");
  }
  for (const std::string dtype : {"null", "32", "[\"F32\"]", "{}", "true"}) {
    refuses_entry(entry(dtype, "[2]", "[0,8]"), "dtype is not a string");
  }
}

TEST_F(SafetensorsHeaderTest, ShapeThatIsNone) {
  for (const std::string shape : {"2", "\"2\"", "null", "{\"0\":2}"}) {
    refuses_entry(entry("\"F32\"", shape, "[0,8]"), "");
  }
  for (const std::string shape : {"[-2]", "[2.0]", "[\"2\"]", "[null]", "[9223372036854775808]",
                                  "[18446744073709551616]", "[2e0]"}) {
    refuses_entry(entry("\"F32\"", shape, "[0,8]"), "shape holds something other than extents");
  }
  refuses_entry(entry("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), "rank over 8");
  refuses_entry(entry("\"F32\"", "[3]", "[0,8]"), "found 8 bytes, expected those of float32[3]");
  refuses_entry(entry("\"F32\"", "[]", "[0,8]"), "float32[]");
  refuses_entry(entry("\"F32\"", "[0]", "[0,8]"), "float32[0]");
  refuses_entry(entry("\"F64\"", "[2]", "[0,8]"), "float64[2]");
  // Products that wrap around; the first to just the 8 bytes that there are.
  refuses_entry(entry("\"F32\"", "[2305843009213693953,2]", "[0,8]"), "found 8 bytes");
  refuses_entry(entry("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "found 8 bytes");
  refuses_entry(entry("\"F32\"", "[9223372036854775807,2]", "[0,8]"), "found 8 bytes");
  refuses_entry(entry("\"F32\"", "[4294967296,4294967296,0]", "[0,0]"), "found 0 bytes");
}

TEST_F(SafetensorsHeaderTest, OffsetsOutsideOrUnordered) {
  for (const std::string offsets :
       {"[0,9]", "[8,16]", "[8,0]", "[9,9]", "[9223372036854775800,9223372036854775807]"}) {
    refuses_entry(entry("\"F32\"", "[2]", offsets), "inside the 8 bytes of data");
  }
  for (const std::string offsets : {"[]", "[0]", "[0,8,8]"}) {
    refuses_entry(entry("\"F32\"", "[2]", offsets), "not a pair");
  }
  for (const std::string offsets : {"[-1,7]", "[0,8.0]", "[0,\"8\"]", "[0,18446744073709551615]"}) {
    refuses_entry(entry("\"F32\"", "[2]", offsets), "data_offsets holds something other");
  }
  for (const std::string offsets : {"8", "null", "{}"}) {
    refuses_entry(entry("\"F32\"", "[2]", offsets), "");
  }
}

TEST_F(SafetensorsHeaderTest, OverlapsHolesAndTrailingBytes) {
  const auto two = [](const std::string& a, const std::string& b) {
    return "{\"a\":" + entry("\"U8\"", "[4]", a) + ",\"b\":" + entry("\"U8\"", "[4]", b) + "}";
  };
  accepts_header(two("[0,4]", "[4,8]"));
  accepts_header(two("[4,8]", "[0,4]"));
  refuses(safetensors(two("[0,4]", "[3,7]"), 7), "overlap");
  refuses(safetensors(two("[0,4]", "[0,4]"), 4), "overlap");
  refuses(safetensors(two("[0,4]", "[5,9]"), 9), "hole");
  refuses(safetensors(two("[1,5]", "[5,9]"), 9), "hole");
  refuses(safetensors(two("[0,4]", "[4,8]"), 9), "bytes behind its last tensor");
  refuses(safetensors("{}", 1), "bytes behind its last tensor");
  refuses(safetensors("{\"a\":" + kGood + ",\"b\":" + entry("\"F32\"", "[0]", "[4,4]") + "}"),
          "overlap");
}

TEST_F(SafetensorsHeaderTest, TruncatedAtEveryByte) {
  for (const std::string name : {"all", "shapes"}) {
    const std::string whole = read_bytes(fixture(name + ".safetensors"));
    for (size_t n = 0; n < whole.size(); ++n) {
      const auto file = SafetensorsFile::open(folder_.write("x.safetensors", whole.substr(0, n)));
      ASSERT_FALSE(file.ok()) << name << " cut to " << n << " bytes was accepted";
    }
    refuses(whole + '\0', "bytes behind its last tensor");
  }
}

TEST_F(SafetensorsHeaderTest, EveryByteFlippedNeverCrashes) {
  const std::string whole = read_bytes(fixture("shapes.safetensors"));
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ (i % 2 == 0 ? '\x01' : '\x80'));
    const auto file = SafetensorsFile::open(folder_.write("x.safetensors", changed));
    if (!file.ok()) continue;
    for (const auto& [name, tensor] : file.value()->tensors()) {
      EXPECT_EQ(static_cast<int64_t>(tensor.bytes.size()),
                count(tensor.shape) * size_of(tensor.type));
    }
  }
}

// An open folder.
class Folder {
 public:
  explicit Folder(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}
  ~Folder() { ::close(fd_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

TEST(SafetensorsPathTest, BelowAFolder) {
  const TempFolder folder;
  std::filesystem::create_directories(folder.path("a/b"));
  const std::string good = safetensors("{\"a\":" + kGood + "}");
  folder.write("w.safetensors", good);
  folder.write("a/b/w.safetensors", good);
  const Folder open(folder.path());
  EXPECT_TRUE(SafetensorsFile::open("w.safetensors", open.fd()).ok());
  EXPECT_TRUE(SafetensorsFile::open("a/b/w.safetensors", open.fd()).ok());
  const auto refuses = [&](const std::string& path, const std::string& part) {
    expect_error(SafetensorsFile::open(path, open.fd()), ErrorKind::kInvalid, path, part);
  };
  refuses("none.safetensors", "No such file");
  refuses("none/w.safetensors", "No such file");
  refuses("w.safetensors/w.safetensors", "Not a directory");
  refuses("a/b", "found a folder");
  for (const std::string& path :
       {std::string(), std::string("/w.safetensors"), folder.path("w.safetensors"),
        std::string("a//b/w.safetensors"), std::string("./w.safetensors"),
        std::string("a/../w.safetensors"), std::string("../w.safetensors"), std::string("a/b/")}) {
    refuses(path, "expected a relative path");
  }
  refuses(std::string("w.safetensors\0.safetensors", 26), "NUL byte");
}

TEST(SafetensorsPathTest, LinksAreRefusedBelowAFolderOnly) {
  const TempFolder folder;
  std::filesystem::create_directories(folder.path("real"));
  const std::string good = safetensors("{\"a\":" + kGood + "}");
  folder.write("real/w.safetensors", good);
  folder.write("real/twice.safetensors", good);
  std::filesystem::create_symlink("real", folder.path("link"));
  std::filesystem::create_symlink("real/w.safetensors", folder.path("link.safetensors"));
  std::filesystem::create_symlink("nowhere", folder.path("dangling.safetensors"));
  std::filesystem::create_hard_link(folder.path("real/twice.safetensors"),
                                    folder.path("hard.safetensors"));
  const Folder open(folder.path());
  for (const std::string path :
       {"link/w.safetensors", "link.safetensors", "dangling.safetensors"}) {
    expect_error(SafetensorsFile::open(path, open.fd()), ErrorKind::kInvalid, path,
                 "found a symbolic link");
  }
  for (const std::string path : {"hard.safetensors", "real/twice.safetensors"}) {
    expect_error(SafetensorsFile::open(path, open.fd()), ErrorKind::kInvalid, path,
                 "2 hard links, expected one");
    EXPECT_TRUE(SafetensorsFile::open(folder.path(path)).ok());
  }
  EXPECT_TRUE(SafetensorsFile::open(folder.path("link/w.safetensors")).ok());
  EXPECT_TRUE(SafetensorsFile::open(folder.path("link.safetensors")).ok());
}

TEST(SafetensorsPathTest, PipesAndFoldersAreRefusedWithoutWaiting) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo(folder.path("pipe.safetensors").c_str(), 0600), 0);
  const Folder open(folder.path());
  expect_error(SafetensorsFile::open("pipe.safetensors", open.fd()), ErrorKind::kInvalid,
               "pipe.safetensors", "found a pipe, expected a regular file");
  const std::string pipe = folder.path("pipe.safetensors");
  expect_error(SafetensorsFile::open(pipe), ErrorKind::kInvalid, pipe, "found a pipe");
  expect_error(SafetensorsFile::open(folder.path()), ErrorKind::kInvalid, folder.path(),
               "found a folder");
  expect_error(SafetensorsFile::open("/dev/zero"), ErrorKind::kInvalid, "/dev/zero",
               "found a device");
}

TEST(SafetensorsTest, WhatIsWrittenIsReadBack) {
  const TempFolder folder;
  const OwnedTensor odd(DType::kF16, {3});  // what follows it is not aligned
  const OwnedTensor f32(DType::kF32, {2, 3});
  const OwnedTensor f16(DType::kF16, {2, 3}, {1, 5});
  const OwnedTensor bf16(DType::kBF16, {2, 3}, {9, 2});
  const OwnedTensor empty(DType::kF32, {4, 0});
  const OwnedTensor scalar(DType::kBF16, {});
  const std::string path = folder.path("x.safetensors");
  const auto written = write_safetensors(path, {{"odd", odd.view},
                                                {"a \"quoted\"\n name", f32.view},
                                                {"\u00e9", f16.view},
                                                {"b", bf16.view},
                                                {"e", empty.view},
                                                {"", scalar.view}});
  ASSERT_TRUE(written.ok()) << written.error().to_string();
  const std::string bytes = read_bytes(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().to_string();
  const auto& tensors = file.value()->tensors();
  EXPECT_EQ(tensors.size(), 6u);
  const auto expect = [&](const std::string& name, ArrayType type, const Dims& shape) {
    SCOPED_TRACE(name);
    const auto* tensor = file.value()->find(name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->type, type);
    EXPECT_EQ(tensor->shape, shape);
    for (int64_t i = 0; i < count(shape); ++i) {
      EXPECT_EQ(value_of(*tensor, i), element(ArrayType::kF32, i));
    }
  };
  expect("odd", ArrayType::kF16, {3});
  expect("a \"quoted\"\n name", ArrayType::kF32, {2, 3});
  expect("\u00e9", ArrayType::kF16, {2, 3});
  expect("b", ArrayType::kBF16, {2, 3});
  expect("e", ArrayType::kF32, {4, 0});
  expect("", ArrayType::kBF16, {});

  ASSERT_TRUE(write_safetensors(path, {}).ok());
  EXPECT_EQ(read_bytes(path), read_bytes(fixture("nothing.safetensors")));
}

TEST(SafetensorsTest, NamesThatCannotBeWritten) {
  const TempFolder folder;
  const OwnedTensor tensor(DType::kF32, {2});
  const std::string path = folder.path("x.safetensors");
  for (const std::string name : {"__metadata__", "\xff", "a"}) {
    expect_error(write_safetensors(path, {{"a", tensor.view}, {name, tensor.view}}),
                 ErrorKind::kInvalid, path, in_quotes(name));
  }
  EXPECT_EQ(folder.files(), 0);
}

}  // namespace
}  // namespace me::testing
