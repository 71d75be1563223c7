#include "ops/base/tensor.h"

namespace me {

std::optional<int64_t> checked_count(const Dims& shape) {
  constexpr int64_t kLimit = INT64_MAX / 8;
  int64_t extent = 1;
  bool empty = false;
  for (int64_t d : shape) {
    if (d < 0) return std::nullopt;
    if (d == 0) {
      empty = true;
    } else if (extent > kLimit / d) {
      return std::nullopt;
    } else {
      extent *= d;
    }
  }
  return empty ? 0 : extent;
}

std::string to_string(const Dims& dims) {
  std::string out = "[";
  for (int i = 0; i < dims.rank(); ++i) {
    if (i > 0) out += ", ";
    out += dims[i] == kUnknownDim ? "?" : std::to_string(dims[i]);
  }
  return out + "]";
}

std::string to_string(const TensorType& type) {
  return std::string(name_of(type.dtype)) + to_string(type.shape);
}

bool TensorDesc::is_dense() const {
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != step) return false;
    step *= shape[i];
  }
  return true;
}

TensorDesc dense(DType dtype, const Dims& shape) {
  TensorDesc desc;
  desc.dtype = dtype;
  desc.shape = shape;
  desc.strides = dense_strides(shape);
  return desc;
}

}  // namespace me
