// What the tests of the file formats share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "engine/io/npy.h"
#include "tests/engine/temp_folder.h"

namespace me::testing {

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
