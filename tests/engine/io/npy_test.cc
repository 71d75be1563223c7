// .npy files: what NumPy writes is read, what we write NumPy reads, all else is refused.
#include "engine/io/npy.h"

#include <unistd.h>

#include <fstream>

#include "io_test.h"

namespace me::testing {
namespace {

struct Fixture {
  std::string name;
  ArrayType type;
  Dims shape;
};

class NpyFixtureTest : public ::testing::TestWithParam<Fixture> {};

TEST_P(NpyFixtureTest, IsWhatNumPyWrote) {
  const Fixture& expected = GetParam();
  const auto array = read_npy(fixture(expected.name + ".npy"));
  ASSERT_TRUE(array.ok()) << array.error().to_string();
  EXPECT_EQ(array.value().type, expected.type);
  EXPECT_EQ(array.value().shape, expected.shape);
  ASSERT_EQ(static_cast<int64_t>(array.value().bytes.size()),
            count(expected.shape) * size_of(expected.type));
  for (int64_t i = 0; i < count(expected.shape); ++i) {
    EXPECT_EQ(array.value().get(i), element(expected.type, i)) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Npy, NpyFixtureTest,
    ::testing::Values(
        Fixture{"f4", ArrayType::kF32, {2, 3}}, Fixture{"f2", ArrayType::kF16, {2, 3}},
        Fixture{"bf16", ArrayType::kBF16, {2, 3}}, Fixture{"f8", ArrayType::kF64, {2, 3}},
        Fixture{"i8", ArrayType::kI64, {2, 3}}, Fixture{"i4", ArrayType::kI32, {2, 3}},
        Fixture{"i1", ArrayType::kI8, {2, 3}}, Fixture{"u1", ArrayType::kU8, {2, 3}},
        Fixture{"b1", ArrayType::kBool, {2, 3}}, Fixture{"f2_big_endian", ArrayType::kF16, {2, 3}},
        Fixture{"f4_big_endian", ArrayType::kF32, {2, 3}},
        Fixture{"f8_big_endian", ArrayType::kF64, {2, 3}},
        Fixture{"i4_big_endian", ArrayType::kI32, {2, 3}},
        Fixture{"i8_big_endian", ArrayType::kI64, {2, 3}},
        Fixture{"f2_fortran", ArrayType::kF16, {2, 3, 4}},
        Fixture{"f4_fortran", ArrayType::kF32, {2, 3, 4}},
        Fixture{"f8_fortran", ArrayType::kF64, {2, 3, 4}},
        Fixture{"i1_fortran", ArrayType::kI8, {2, 3, 4}},
        Fixture{"bf16_fortran", ArrayType::kBF16, {2, 3, 4}},
        Fixture{"i8_big_endian_fortran", ArrayType::kI64, {2, 3, 4}},
        Fixture{"f4_version_2", ArrayType::kF32, {2, 3}},
        Fixture{"f4_version_3", ArrayType::kF32, {2, 3}}, Fixture{"f4_rank_0", ArrayType::kF32, {}},
        Fixture{"f4_rank_1", ArrayType::kF32, {3}},
        Fixture{"f4_rank_8", ArrayType::kF32, {1, 2, 1, 1, 3, 1, 1, 1}},
        Fixture{"f4_empty", ArrayType::kF32, {0, 3}},
        Fixture{"f4_empty_fortran", ArrayType::kF32, {3, 0, 2}}),
    [](const auto& test) { return test.param.name; });

TEST(NpyTest, OtherTypesAreRefusedWithTheirName) {
  for (const auto& [name, part] :
       std::vector<std::pair<std::string, std::string>>{{"object", "\"|O\" (Python objects)"},
                                                        {"structured", "structured dtype"},
                                                        {"complex", "\"<c8\""},
                                                        {"unsigned", "\"<u4\""},
                                                        {"string", "\"<U2\""},
                                                        {"time", "\"<M8[s]\""},
                                                        {"long_double", "\"<f16\""},
                                                        {"rank_9", "rank over 8"}}) {
    const std::string path = fixture("refused_" + name + ".npy");
    expect_error(read_npy(path), ErrorKind::kInvalid, path, part);
  }
}

// A file of version 1.0 or `major`.0 around this header.
std::string npy(const std::string& header, const std::string& data, char major = 1) {
  std::string file = "\x93NUMPY";
  file += major;
  file += '\0';
  const int length_bytes = major == 1 ? 2 : 4;
  for (int i = 0; i < length_bytes; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return file + header + data;
}

std::string header_of(const std::string& descr, const std::string& order,
                      const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + "}";
}

class NpyHeaderTest : public ::testing::Test {
 protected:
  void refuses(const std::string& content, const std::string& part) const {
    SCOPED_TRACE(content.substr(0, 200));
    const std::string path = folder_.write("x.npy", content);
    expect_error(read_npy(path), ErrorKind::kInvalid, path, part);
  }
  void refuses_header(const std::string& header, const std::string& part) const {
    refuses(npy(header, std::string(8, '\0')), part);
  }
  void accepts_header(const std::string& header) const {
    SCOPED_TRACE(header);
    const auto array = read_npy(folder_.write("x.npy", npy(header, std::string(8, '\0'))));
    ASSERT_TRUE(array.ok()) << array.error().to_string();
    EXPECT_EQ(count(array.value().shape), 2);
  }

  const TempFolder folder_;
};

TEST_F(NpyHeaderTest, GoodVariantsAreRead) {
  const std::string good = header_of("'<f4'", "False", "(2,)");
  accepts_header(good);
  accepts_header(good + std::string(20000, ' ') + "\n");
  accepts_header("{\"shape\":(1,2,),\"descr\":\"=f4\",\"fortran_order\":True,}");
}

TEST_F(NpyHeaderTest, DictThatIsNone) {
  refuses_header("", "not a dict");
  refuses_header("[]", "not a dict");
  refuses_header("{", "named fields");
  refuses_header("{}", "lacks");
  refuses_header("{,}", "named fields");
  refuses_header("{descr: '<f4'}", "named fields");
  refuses_header("{'descr'}", "named fields");
  refuses_header("{'descr", "named fields");
  refuses_header("{'descr': '<f4'", "commas");
  refuses_header("{'descr': '<f4' 'shape': (2,)}", "commas");
  refuses_header("{'descr': '<f4',, 'shape': (2,)}", "named fields");
  refuses_header("{'descr': '<f4', 'shape': (2,)}", "lacks");
  refuses_header(header_of("'<f4'", "False", "(2,)") + "x", "behind its dict");
  refuses_header(header_of("'<f4'", "False", "(2,)") + std::string(1, '\0'), "behind its dict");
}

TEST_F(NpyHeaderTest, KeyTwiceOrUnknown) {
  refuses_header("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
                 "descr twice");
  refuses_header("{'shape': (2,), 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
                 "shape twice");
  refuses_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x\x1b': 1}",
                 R"(unknown key "x\x1b")");
}

TEST_F(NpyHeaderTest, WrongDescr) {
  for (const std::string descr : {"''", "'f4'", "'<'", "'<f'", "'<f3'", "'<f44'", "'|f4'", "'!f4'",
                                  "'<V4'", "'<F4'", "'< f4'", "'>c8'", "'<i2'"}) {
    refuses_header(header_of(descr, "False", "(2,)"), "found dtype");
  }
  refuses_header(header_of("('<f4', (2,))", "False", "(2,)"), "descr is not a string");
  refuses_header(header_of("4", "False", "(2,)"), "descr is not a string");
  refuses_header(header_of("'\\x3cf4'", "False", "(2,)"), "descr is not a string");
  refuses_header(header_of("'<f4\"", "False", "(2,)"), "commas");  // the quotes differ
}

TEST_F(NpyHeaderTest, WrongOrder) {
  for (const std::string order : {"0", "1", "false", "None", "'False'", ""}) {
    refuses_header(header_of("'<f4'", order, "(2,)"), "neither True nor False");
  }
  refuses_header(header_of("'<f4'", "Falsehood", "(2,)"), "commas");
}

TEST_F(NpyHeaderTest, ShapeThatIsNoTupleOfExtents) {
  for (const std::string shape : {"2", "[2]", "'2'", "None", ""}) {
    refuses_header(header_of("'<f4'", "False", shape), "not a tuple");
  }
  for (const std::string shape :
       {"(-2,)", "(+2,)", "(,)", "(2,,)", "(2.0,)x", "(0x2,)", "(02,)", "(True,)", "((2,),)",
        "(9223372036854775808,)", "(99999999999999999999999,)", "(2,", "(-0,)"}) {
    refuses_header(header_of("'<f4'", "False", shape), "shape");
  }
  refuses_header(header_of("'<f4'", "False", "(2)"), "not a tuple");
  refuses_header(header_of("'<f4'", "False", "(2L,)"), "commas");
  refuses_header(header_of("'<f4'", "False", "(1 2)"), "commas");
  refuses_header(header_of("'<f4'", "False", "(1,1,1,1,1,1,1,1,2)"), "rank over 8");
}

TEST_F(NpyHeaderTest, SizesThatDoNotFitTheData) {
  refuses_header(header_of("'<f4'", "False", "(1,)"), "found 8 bytes of data, expected those of");
  refuses_header(header_of("'<f4'", "False", "(3,)"), "float32[3]");
  refuses_header(header_of("'<f4'", "False", "()"), "float32[]");
  refuses_header(header_of("'<f4'", "False", "(0,)"), "float32[0]");
  // Products that wrap around; the first to just the 8 bytes that there are.
  refuses_header(header_of("'<f4'", "False", "(2305843009213693953, 2)"), "8 bytes of data");
  refuses_header(header_of("'<f4'", "False", "(4294967296, 4294967296)"), "8 bytes of data");
  refuses_header(header_of("'<f4'", "False", "(9223372036854775807, 2)"), "8 bytes of data");
  refuses_header(header_of("'<f4'", "False", "(4611686018427387904, 4, 0)"), "8 bytes of data");
  refuses(npy(header_of("'<f4'", "False", "(4294967296, 4294967296, 0)"), ""), "0 bytes of data");
}

TEST_F(NpyHeaderTest, MagicVersionAndLengthThatLie) {
  const std::string header = header_of("'<f4'", "False", "(2,)");
  const std::string data(8, '\0');
  refuses("", "not a .npy file");
  refuses("\x93NUMPX" + npy(header, data).substr(6), "not a .npy file");
  refuses("PK\x03\x04 an .npz archive", "not a .npy file");
  refuses(npy(header, data, 0), "version 0.0");
  refuses(npy(header, data, 4), "version 4.0");
  std::string minor = npy(header, data);
  minor[7] = 1;
  refuses(minor, "version 1.1");
  std::string longer = npy(header, data);
  longer[9] = '\x7f';
  refuses(longer, "ends inside the header");
  std::string longest = npy(header, data, 2);
  longest.replace(8, 4, "\xff\xff\xff\xff");
  refuses(longest, "found a header of 4294967295 bytes");
}

TEST_F(NpyHeaderTest, TruncatedAtEveryByte) {
  for (const std::string name : {"f4", "f4_version_2", "i8_big_endian_fortran"}) {
    const std::string whole = read_bytes(fixture(name + ".npy"));
    for (size_t n = 0; n < whole.size(); ++n) {
      const auto array = read_npy(folder_.write("x.npy", whole.substr(0, n)));
      ASSERT_FALSE(array.ok()) << name << " cut to " << n << " bytes was accepted";
    }
    refuses(whole + '\0', "bytes of data");
  }
}

TEST_F(NpyHeaderTest, EveryByteOfTheHeaderFlippedNeverCrashes) {
  const std::string whole = read_bytes(fixture("f4.npy"));
  for (size_t i = 0; i < 128; ++i) {
    for (const char flip : {'\x01', '\x08', '\x20', '\x80'}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      const auto array = read_npy(folder_.write("x.npy", changed));
      if (array.ok()) {
        EXPECT_EQ(count(array.value().shape) * size_of(array.value().type), 24);
      }
    }
  }
}

TEST(NpyTest, MoreThanThereIsMemoryFor) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer ends the program instead";
#endif
  int overcommit = 1;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> overcommit;
  if (overcommit == 1) GTEST_SKIP() << "this system promises memory that it lacks";
  const TempFolder folder;
  constexpr int64_t kDataBytes = 4 * 2199023255552;
  const std::string content = npy(header_of("'<f4'", "False", "(2199023255552,)"), "");
  const std::string path = folder.write("x.npy", content);
  if (::truncate(path.c_str(), static_cast<int64_t>(content.size()) + kDataBytes) != 0) {
    GTEST_SKIP() << "no sparse files of this size here";
  }
  expect_error(read_npy(path), ErrorKind::kRuntime, path, "more than there is memory for");
}

TEST(NpyTest, BoolIsZeroOrOne) {
  const TempFolder folder;
  const auto array = read_npy(folder.write(
      "x.npy", npy(header_of("'|b1'", "False", "(3,)"), std::string("\x00\x01\xff", 3))));
  ASSERT_TRUE(array.ok()) << array.error().to_string();
  EXPECT_EQ(array.value().get(0), 0);
  EXPECT_EQ(array.value().get(1), 1);
  EXPECT_EQ(array.value().get(2), 1);
}

TEST(NpyTest, WritesWhatNumPyWrites) {
  const TempFolder folder;
  for (const auto& [name, dtype, shape] : std::vector<std::tuple<std::string, DType, Dims>>{
           {"f4", DType::kF32, {2, 3}},
           {"f2", DType::kF16, {2, 3}},
           {"f4_rank_0", DType::kF32, {}},
           {"f4_rank_1", DType::kF32, {3}},
           {"f4_rank_8", DType::kF32, {1, 2, 1, 1, 3, 1, 1, 1}},
           {"f4_empty", DType::kF32, {0, 3}}}) {
    const OwnedTensor tensor(dtype, shape);
    const auto written = write_npy(folder.path("x.npy"), tensor.view);
    ASSERT_TRUE(written.ok()) << written.error().to_string();
    EXPECT_EQ(read_bytes(folder.path("x.npy")), read_bytes(fixture(name + ".npy"))) << name;
  }
}

TEST(NpyTest, WritesBF16AsFloat32) {
  const TempFolder folder;
  const OwnedTensor tensor(DType::kBF16, {2, 3});
  ASSERT_TRUE(write_npy(folder.path("x.npy"), tensor.view).ok());
  EXPECT_EQ(read_bytes(folder.path("x.npy")), read_bytes(fixture("f4.npy")));
}

TEST(NpyTest, WritesStridedViewsDense) {
  const TempFolder folder;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Dims& strides : {Dims{1, 2}, Dims{7, 2}, Dims{1, 5}}) {
      const OwnedTensor tensor(dtype, {2, 3}, strides);
      ASSERT_TRUE(write_npy(folder.path("x.npy"), tensor.view).ok());
      EXPECT_EQ(read_bytes(folder.path("x.npy")),
                read_bytes(fixture(dtype == DType::kF16 ? "f2.npy" : "f4.npy")));
    }
  }
  float one = 1.5f;
  TensorView repeated;
  static_cast<TensorDesc&>(repeated) = dense(DType::kF32, {2, 2});
  repeated.strides = {0, 0};
  repeated.data = &one;
  ASSERT_TRUE(write_npy(folder.path("x.npy"), repeated).ok());
  const auto array = read_npy(folder.path("x.npy"));
  ASSERT_TRUE(array.ok());
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(array.value().get(i), 1.5);
}

}  // namespace
}  // namespace me::testing
