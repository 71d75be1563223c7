#include "ops/softmax_grad/softmax_grad.h"

#include <fmt/format.h>

namespace me {
namespace {

Result<std::unique_ptr<Attrs>> parse(const AttrMap&) {
  return {std::make_unique<SoftmaxGradAttrs>()};
}

Result<std::vector<TensorType>> infer(const Attrs&, std::span<const TensorType> inputs,
                                      const Symbols&) {
  const TensorType& y = inputs[0];
  const TensorType& g = inputs[1];
  bool same = y.dtype == g.dtype && y.shape.rank() == g.shape.rank() && y.shape.rank() >= 1;
  TensorType dx = y;
  for (int i = 0; same && i < y.shape.rank(); ++i) {
    same = dims_agree(y.shape[i], g.shape[i]);
    dx.shape[i] = known_dim(y.shape[i], g.shape[i]);
  }
  if (!same) {
    Error error = invalid(fmt::format(
        "found y {} and g {}, expected two tensors of one type and shape, of rank 1 or more",
        to_string(y), to_string(g)));
    error.field = "softmax_grad.inputs";
    return error;
  }
  return std::vector{dx};
}

// Per element: multiply and add in the sum, subtract, multiply.
Work work(const Problem& p) {
  const double n = static_cast<double>(p.outputs[0].count());
  return {4 * n, 3 * n * static_cast<double>(size_of(p.outputs[0].dtype))};
}

int64_t sum_length(const Problem& p) { return p.inputs[0].shape.back(); }

}  // namespace

std::vector<OracleOutput> softmax_grad_oracle(const Problem& problem,
                                              std::span<const F64Tensor> inputs);

const OpDef kSoftmaxGradOp = {
    .name = "softmax_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .input_names = "y, g",
    .parse = parse,
    .infer = infer,
    .work = work,
    .sum_length = sum_length,
    .oracle = softmax_grad_oracle,
};

}  // namespace me
