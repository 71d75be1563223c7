#include "ops/linear/linear_cublaslt.h"

#include <fmt/format.h>

#include "ops/base/rows.h"

namespace me {
namespace {

Error refuse(std::string message) { return {ErrorKind::kDevice, std::move(message)}; }

std::string strides_of(const TensorDesc& t) {
  return fmt::format("{} with strides {}", to_string(t.type()), to_string(t.strides));
}

// The one stride that leads through a tensor's rows, or nothing.
std::optional<int64_t> row_stride_of(const Rows& rows) {
  if (rows.leading.shape.rank() > 1) return std::nullopt;
  return rows.leading.shape.rank() == 0 ? 0 : rows.leading.strides[0];
}

}  // namespace

Result<LtProduct> linear_lt_product(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  const TensorDesc& x = p.inputs[0];
  const TensorDesc& w = p.inputs[1];
  const TensorDesc& y = p.outputs[0];
  if (s.k == 0) return refuse("found K = 0, expected a product to compute");

  LtProduct product;
  product.device = p.device.index;

  const WeightStrides ws = weight_strides(p);
  const auto a = lt_operand(w.dtype, s.n, s.k, ws.n, ws.k);
  if (!a) {
    return refuse(fmt::format(
        "found the weight {}, expected stride 1 along one axis and at least its extent along the "
        "other",
        strides_of(w)));
  }
  product.a = a->matrix;
  product.a.alignment_bytes = w.alignment_bytes;
  product.transpose_a = a->transpose;

  const Rows x_rows = rows_of(x);
  const auto x_stride = row_stride_of(x_rows);
  const auto b = x_stride ? lt_operand(x.dtype, s.k, s.m, x_rows.stride, *x_stride) : std::nullopt;
  if (!b) {
    return refuse(fmt::format(
        "found x {}, expected one stride through its rows, and of that and the columns' one 1 and "
        "the other at least that extent",
        strides_of(x)));
  }
  product.b = b->matrix;
  product.b.alignment_bytes = x.alignment_bytes;
  product.transpose_b = b->transpose;

  const Rows y_rows = rows_of(y);
  const auto y_stride = row_stride_of(y_rows);
  const auto d = y_stride ? lt_result(y.dtype, s.n, s.m, y_rows.stride, *y_stride) : std::nullopt;
  if (!d) {
    return refuse(fmt::format(
        "found y {}, expected stride 1 along its columns and one through its rows", strides_of(y)));
  }
  product.d = *d;
  product.d.alignment_bytes = y.alignment_bytes;

  product.tf32 = may_use_tf32(p);
  const bool relu = attrs_as<LinearAttrs>(*p.attrs).activation == Activation::kRelu;
  product.epilogue = relu ? LtEpilogue::kRelu : LtEpilogue::kDefault;
  if (has_bias(p)) {
    const TensorDesc& bias = p.inputs[2];
    if (s.n > 1 && bias.strides[0] != 1) {
      return refuse(fmt::format("found the bias {}, expected stride 1", strides_of(bias)));
    }
    product.epilogue = relu ? LtEpilogue::kReluBias : LtEpilogue::kBias;
    product.bias_dtype = bias.dtype;
    product.bias_alignment_bytes = bias.alignment_bytes;
  }
  return product;
}

}  // namespace me
