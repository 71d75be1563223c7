#include "ops/softmax/softmax.h"

#include <fmt/format.h>

namespace me {
namespace {

Result<std::unique_ptr<Attrs>> parse(const AttrMap&) { return {std::make_unique<SoftmaxAttrs>()}; }

Result<std::vector<TensorType>> infer(const Attrs&, std::span<const TensorType> inputs,
                                      const Symbols&) {
  const TensorType& x = inputs[0];
  if (x.shape.rank() < 1) {
    Error error = invalid(
        fmt::format("found {}, expected a tensor with an axis to normalise over", to_string(x)));
    error.field = "softmax.inputs";
    return error;
  }
  return std::vector{x};
}

// Per logit: max, subtract, exp, add, divide.
Work work(const Problem& p) {
  const double n = static_cast<double>(p.outputs[0].count());
  return {5 * n, 2 * n * static_cast<double>(size_of(p.outputs[0].dtype))};
}

int64_t sum_length(const Problem& p) { return p.inputs[0].shape.back(); }

}  // namespace

std::vector<OracleOutput> softmax_oracle(const Problem& problem, std::span<const F64Tensor> inputs);

const OpDef kSoftmaxOp = {
    .name = "softmax",
    .input_names = "x",
    .parse = parse,
    .infer = infer,
    .work = work,
    .sum_length = sum_length,
    .oracle = softmax_oracle,
};

}  // namespace me
