// What the tests of the file formats share.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "engine/io/npy.h"

namespace me::testing {

// A folder that is removed, with all it holds, at the end.
class TempFolder {
 public:
  TempFolder() {
    path_ = (std::filesystem::temp_directory_path() / "io_test_XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

  // Writes a file and returns its path. A new file each time: ext4 flushes one that was truncated.
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::remove(path(name));
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

  // How many files it holds: a temporary that was left behind shows.
  std::ptrdiff_t files() const {
    return std::distance(std::filesystem::directory_iterator(path_),
                         std::filesystem::directory_iterator());
  }

 private:
  std::string path_;
};

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

// A file that make_fixtures.py wrote.
inline std::string fixture(const std::string& name) {
  return std::string(ME_SOURCE_DIR) + "/tests/engine/io/data/" + name;
}

// Element i of the fixtures' arrays of this type, as make_fixtures.py has it.
inline double element(ArrayType type, int64_t i) {
  const auto n = static_cast<double>(i);
  switch (type) {
    case ArrayType::kBool:
      return i % 3 == 0 ? 1 : 0;
    case ArrayType::kU8:
      return 250 - 3 * n;
    case ArrayType::kI8:
      return 3 * n - 7;
    case ArrayType::kI32:
      return (3 * n - 7) * 0x1p20;
    case ArrayType::kI64:
      return (3 * n - 7) * 0x1p40;
    default:
      return 0.5 * n - 1.25;
  }
}

// That `result` is an Error of this kind, which names the file and says `part`.
template <class T>
void expect_error(const Result<T>& result, ErrorKind kind, const std::string& file,
                  const std::string& part) {
  ASSERT_FALSE(result.ok()) << file << " was accepted, expected: " << part;
  EXPECT_EQ(result.error().kind, kind) << result.error().to_string();
  EXPECT_EQ(result.error().file, file);
  EXPECT_NE(result.error().to_string().find(part), std::string::npos)
      << "found:    " << result.error().to_string() << "\nexpected: " << part;
}

// A tensor whose memory it owns; element i in row-major order is element(kF32, i), which every type
// holds exactly.
struct OwnedTensor {
  TensorView view;
  std::vector<std::byte> memory;

  OwnedTensor(DType dtype, const Dims& shape, const Dims& strides) {
    static_cast<TensorDesc&>(view) = dense(dtype, shape);
    view.strides = strides;
    int64_t last = 0;
    for (int i = 0; i < shape.rank(); ++i) last += (shape[i] - 1) * strides[i];
    if (view.count() > 0) memory.resize(static_cast<size_t>((last + 1) * size_of(dtype)));
    view.data = memory.data();
    for (int64_t i = 0; i < view.count(); ++i) {
      store_f32(view.data, offset_of(view, i), dtype,
                static_cast<float>(element(ArrayType::kF32, i)));
    }
  }
  OwnedTensor(DType dtype, const Dims& shape) : OwnedTensor(dtype, shape, dense_strides(shape)) {}
  OwnedTensor(const OwnedTensor&) = delete;
  OwnedTensor& operator=(const OwnedTensor&) = delete;
};

}  // namespace me::testing
