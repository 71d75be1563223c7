#include "ops/add/add.h"

#include <fmt/format.h>

namespace me {
namespace {

Result<std::unique_ptr<Attrs>> parse(const AttrMap&) { return {std::make_unique<AddAttrs>()}; }

Result<std::vector<TensorType>> infer(const Attrs&, std::span<const TensorType> inputs,
                                      const Symbols&) {
  const TensorType& a = inputs[0];
  const TensorType& b = inputs[1];
  bool same = a.dtype == b.dtype && a.shape.rank() == b.shape.rank();
  TensorType y = a;
  for (int i = 0; same && i < a.shape.rank(); ++i) {
    same = dims_agree(a.shape[i], b.shape[i]);
    y.shape[i] = known_dim(a.shape[i], b.shape[i]);
  }
  if (!same) {
    Error error = invalid(fmt::format("found {} and {}, expected two tensors of one type and shape",
                                      to_string(a), to_string(b)));
    error.field = "add.inputs";
    return error;
  }
  return std::vector{y};
}

Work work(const Problem& p) {
  const double n = static_cast<double>(p.outputs[0].count());
  return {n, 3 * n * static_cast<double>(size_of(p.outputs[0].dtype))};
}

int64_t sum_length(const Problem&) { return 0; }

}  // namespace

std::vector<OracleOutput> add_oracle(const Problem& problem, std::span<const F64Tensor> inputs);

const OpDef kAddOp = {
    .name = "add",
    .min_inputs = 2,
    .max_inputs = 2,
    .input_names = "a, b",
    .parse = parse,
    .infer = infer,
    .work = work,
    .sum_length = sum_length,
    .oracle = add_oracle,
};

}  // namespace me
