#include "ops/linear/linear.h"

#include <fmt/format.h>

namespace me {
namespace {

Error refuse(std::string_view field, std::string message) {
  Error error = invalid(std::move(message));
  error.field = field;
  return error;
}

Result<std::unique_ptr<Attrs>> parse(const AttrMap& fields) {
  auto attrs = std::make_unique<LinearAttrs>();
  if (const auto layout = find_attr<std::string>(fields, "weight_layout")) {
    if (*layout != "KN" && *layout != "NK") {
      return refuse("linear.weight_layout",
                    fmt::format("found {}, expected KN or NK", in_quotes(*layout)));
    }
    attrs->weight_layout = *layout == "NK" ? WeightLayout::kNK : WeightLayout::kKN;
  }
  if (const auto activation = find_attr<std::string>(fields, "activation")) {
    if (*activation != "NONE" && *activation != "RELU") {
      return refuse("linear.activation",
                    fmt::format("found {}, expected NONE or RELU", in_quotes(*activation)));
    }
    attrs->activation = *activation == "RELU" ? Activation::kRelu : Activation::kNone;
  }
  if (const auto dtype = find_attr<std::string>(fields, "output_dtype")) {
    if (*dtype == "F32") {
      attrs->output_dtype = DType::kF32;
    } else if (*dtype == "F16") {
      attrs->output_dtype = DType::kF16;
    } else if (*dtype == "BF16") {
      attrs->output_dtype = DType::kBF16;
    } else {
      return refuse("linear.output_dtype",
                    fmt::format("found {}, expected F32, F16 or BF16", in_quotes(*dtype)));
    }
  }
  attrs->allow_tf32 = find_attr<bool>(fields, "allow_tf32").value_or(false);
  return {std::move(attrs)};
}

Result<std::vector<TensorType>> infer(const Attrs& attrs, std::span<const TensorType> inputs,
                                      const Symbols&) {
  const auto& linear = attrs_as<LinearAttrs>(attrs);
  const TensorType& x = inputs[0];
  const TensorType& w = inputs[1];
  if (x.shape.rank() < 1) {
    return refuse("linear.x", fmt::format("found {}, expected rank 1 or more", to_string(x)));
  }
  const bool nk = linear.weight_layout == WeightLayout::kNK;
  const std::string_view layout = nk ? "[N, K]" : "[K, N]";
  if (w.shape.rank() != 2) {
    return refuse("linear.weight",
                  fmt::format("found {}, expected rank 2: {}", to_string(w), layout));
  }
  if (w.dtype != x.dtype) {
    return refuse("linear.weight", fmt::format("found {}, expected the type of x, {}", to_string(w),
                                               name_of(x.dtype)));
  }
  if (!dims_agree(w.shape[nk ? 1 : 0], x.shape.back())) {
    return refuse("linear.weight",
                  fmt::format("found {} as {} for x {}, expected K to be the last axis of x",
                              to_string(w), layout, to_string(x)));
  }
  int64_t n = w.shape[nk ? 0 : 1];
  if (inputs.size() == 3) {
    const TensorType& bias = inputs[2];
    if (bias.shape.rank() != 1 || !dims_agree(bias.shape[0], n)) {
      return refuse("linear.bias", fmt::format("found {} for a weight {} as {}, expected [N]",
                                               to_string(bias), to_string(w), layout));
    }
    if (bias.dtype != x.dtype && bias.dtype != DType::kF32) {
      return refuse("linear.bias", fmt::format("found {}, expected {} (the type of x) or f32",
                                               to_string(bias), name_of(x.dtype)));
    }
    n = known_dim(n, bias.shape[0]);
  }
  TensorType y{linear.output_dtype.value_or(x.dtype), x.shape};
  y.shape.back() = n;
  if (all_known(y.shape) && !checked_count(y.shape)) {
    return refuse("linear.x",
                  fmt::format("found {} and a weight {}, expected fewer than 2^60 elements in the "
                              "output {}",
                              to_string(x), to_string(w), to_string(y)));
  }
  return std::vector{y};
}

Work work(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  const double outputs = static_cast<double>(s.m) * static_cast<double>(s.n);
  const bool relu = attrs_as<LinearAttrs>(*p.attrs).activation == Activation::kRelu;
  Work total;
  total.flops = outputs * (2 * static_cast<double>(s.k) + (has_bias(p) ? 1 : 0) + (relu ? 1 : 0));
  for (const TensorDesc& t : p.inputs) total.bytes += static_cast<double>(t.bytes());
  total.bytes += static_cast<double>(p.outputs[0].bytes());
  return total;
}

int64_t sum_length(const Problem& p) { return linear_sizes(p).k; }

}  // namespace

LinearSizes linear_sizes(const Problem& p) {
  const Dims& y = p.outputs[0].shape;
  LinearSizes s{1, y.back(), p.inputs[0].shape.back()};
  for (int i = 0; i + 1 < y.rank(); ++i) s.m *= y[i];
  return s;
}

WeightStrides weight_strides(const Problem& p) {
  const Dims& strides = p.inputs[1].strides;
  const bool nk = attrs_as<LinearAttrs>(*p.attrs).weight_layout == WeightLayout::kNK;
  return nk ? WeightStrides{strides[1], strides[0]} : WeightStrides{strides[0], strides[1]};
}

std::vector<OracleOutput> linear_oracle(const Problem& problem, std::span<const F64Tensor> inputs);

const OpDef kLinearOp = {
    .name = "linear",
    .min_inputs = 2,
    .max_inputs = 3,
    .input_names = "x, weight, bias",
    .parse = parse,
    .infer = infer,
    .work = work,
    .sum_length = sum_length,
    .oracle = linear_oracle,
};

}  // namespace me
