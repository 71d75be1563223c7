// Shapes, strides and non-owning tensors. Everything counts elements in signed 64 bits.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "ops/base/dtype.h"

namespace me {

constexpr int kMaxRank = 8;

// A dimension that is not known yet: a symbol without a binding, or something derived from one.
constexpr int64_t kUnknownDim = -1;

// Up to kMaxRank extents or strides. Trivially copyable, so kernels take it by value.
class Dims {
 public:
  constexpr Dims() = default;
  constexpr Dims(std::initializer_list<int64_t> values) {
    for (int64_t v : values) push_back(v);
  }

  constexpr int rank() const { return rank_; }
  constexpr int64_t operator[](int i) const { return values_[static_cast<size_t>(i)]; }
  constexpr int64_t& operator[](int i) { return values_[static_cast<size_t>(i)]; }
  constexpr int64_t back() const { return (*this)[rank_ - 1]; }
  constexpr int64_t& back() { return (*this)[rank_ - 1]; }
  // Requires rank() < kMaxRank.
  constexpr void push_back(int64_t v) { values_[static_cast<size_t>(rank_++)] = v; }
  constexpr const int64_t* begin() const { return values_.data(); }
  constexpr const int64_t* end() const { return values_.data() + rank_; }
  constexpr bool operator==(const Dims& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if ((*this)[i] != other[i]) return false;
    }
    return true;
  }

 private:
  std::array<int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

// Product of the extents (1 for rank 0). Requires that it fits: see checked_count.
constexpr int64_t count(const Dims& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

// The same where every dimension is known and the product of the non-zero extents times 8 bytes
// fits in 63 bits (so that no offset and no byte count of the tensor can overflow, not even of one
// with a zero extent); nothing otherwise.
std::optional<int64_t> checked_count(const Dims& shape);

constexpr bool all_known(const Dims& shape) {
  for (int64_t d : shape) {
    if (d == kUnknownDim) return false;
  }
  return true;
}

// Row-major strides of a dense tensor.
constexpr Dims dense_strides(const Dims& shape) {
  Dims strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i] > 0 ? shape[i] : 1;
  }
  return strides;
}

// "[2, 3]"; an unknown dimension prints as "?".
std::string to_string(const Dims& dims);

// Element type and shape: what inference computes. Dimensions may be unknown.
struct TensorType {
  DType dtype = DType::kF32;
  Dims shape;
  bool operator==(const TensorType&) const = default;
};

// "f32[2, 3]"
std::string to_string(const TensorType& type);

// A tensor as it lies in memory, without the memory. Strides are >= 0; 0 repeats an element and is
// legal for inputs only.
struct TensorDesc {
  DType dtype = DType::kF32;
  Dims shape;
  Dims strides;
  bool constant = false;        // a weight: its bytes are final when a kernel is prepared
  int64_t alignment_bytes = 4;  // the address of element 0 is a multiple of this power of two

  int64_t count() const { return me::count(shape); }
  int64_t bytes() const { return count() * size_of(dtype); }
  TensorType type() const { return {dtype, shape}; }
  // Row-major without gaps; the strides of extents 0 and 1 do not count.
  bool is_dense() const;
};

// A dense tensor of this type.
TensorDesc dense(DType dtype, const Dims& shape);

// A tensor in memory that somebody else owns. `data` points at element 0.
struct TensorView : TensorDesc {
  void* data = nullptr;
};

// Offset in elements, from element 0, of the element with row-major index `linear`.
constexpr int64_t offset_of(const TensorDesc& t, int64_t linear) {
  int64_t offset = 0;
  for (int i = t.shape.rank() - 1; i >= 0; --i) {
    offset += linear % t.shape[i] * t.strides[i];
    linear /= t.shape[i];
  }
  return offset;
}

}  // namespace me
