#include "ops/attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace me {
namespace {

Error refuse(std::string_view field, std::string message) {
  Error error = invalid(std::move(message));
  error.field = field;
  return error;
}

Result<std::unique_ptr<Attrs>> parse(const AttrMap& fields) {
  auto attrs = std::make_unique<AttentionAttrs>();
  attrs->scale = find_attr<double>(fields, "scale");
  if (attrs->scale && !std::isfinite(*attrs->scale)) {
    return refuse("attention.scale",
                  fmt::format("found {}, expected a finite number", *attrs->scale));
  }
  attrs->causal = find_attr<bool>(fields, "causal").value_or(false);
  if (const auto offset = find_attr<std::string>(fields, "causal_offset")) {
    if (*offset != "BOTTOM_RIGHT" && *offset != "TOP_LEFT") {
      return refuse("attention.causal_offset",
                    fmt::format("found {}, expected BOTTOM_RIGHT or TOP_LEFT", in_quotes(*offset)));
    }
    if (!attrs->causal) {
      return refuse(
          "attention.causal_offset",
          fmt::format("found {} without causal, expected causal: true beside it", *offset));
    }
    attrs->causal_offset =
        *offset == "TOP_LEFT" ? CausalOffset::kTopLeft : CausalOffset::kBottomRight;
  }
  return {std::move(attrs)};
}

bool legal_head_dim(int64_t d) { return d == kUnknownDim || (d >= 1 && d <= kMaxHeadDim); }

Result<std::vector<TensorType>> infer(const Attrs&, std::span<const TensorType> inputs,
                                      const Symbols&) {
  const TensorType& q = inputs[0];
  const TensorType& k = inputs[1];
  const TensorType& v = inputs[2];
  const auto found = [&](std::string_view expected) {
    return refuse("attention.inputs",
                  fmt::format("found q {}, k {}, v {}, expected {}", to_string(q), to_string(k),
                              to_string(v), expected));
  };
  if (q.dtype != k.dtype || q.dtype != v.dtype) return found("one element type");
  if (q.shape.rank() != 4 || k.shape.rank() != 4 || v.shape.rank() != 4) {
    return found("rank 4 each: [batch, heads, length, head_dim]");
  }
  if (!dims_agree(q.shape[0], k.shape[0]) || !dims_agree(q.shape[0], v.shape[0]) ||
      !dims_agree(k.shape[0], v.shape[0])) {
    return found("one batch size (axis 0)");
  }
  if (!dims_agree(k.shape[1], v.shape[1])) return found("as many heads in k as in v (axis 1)");
  const int64_t heads = q.shape[1];
  const int64_t kv_heads = known_dim(k.shape[1], v.shape[1]);
  if (heads != kUnknownDim && kv_heads != kUnknownDim &&
      (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0)) {
    return found("the heads of q to be a multiple of those of k and v (axis 1)");
  }
  if (!dims_agree(k.shape[2], v.shape[2])) return found("k and v of one length (axis 2)");
  if (!dims_agree(q.shape[3], k.shape[3])) return found("q and k of one head_dim (axis 3)");
  if (!legal_head_dim(q.shape[3]) || !legal_head_dim(k.shape[3]) || !legal_head_dim(v.shape[3])) {
    return found(fmt::format("head dimensions (axis 3) from 1 to {}", kMaxHeadDim));
  }
  const int64_t batch = known_dim(known_dim(q.shape[0], k.shape[0]), v.shape[0]);
  return std::vector{TensorType{q.dtype, {batch, heads, q.shape[2], v.shape[3]}}};
}

Work work(const Problem& problem) {
  const AttentionSizes s = attention_sizes(problem);
  const double rows = static_cast<double>(s.batch * s.heads);
  const double pairs = rows * s.mask.visible_pairs(s.q_len);
  const double outputs = static_cast<double>(problem.outputs[0].count());
  Work total;
  // A pair of query and key: two products, a maximum and an exponential.
  total.flops = pairs * static_cast<double>(2 * s.head_dim + 2 * s.value_dim + 2) + outputs;
  for (const TensorDesc& t : problem.inputs) total.bytes += static_cast<double>(t.bytes());
  total.bytes += static_cast<double>(problem.outputs[0].bytes());
  return total;
}

int64_t sum_length(const Problem& problem) {
  const AttentionSizes s = attention_sizes(problem);
  return std::max(s.head_dim, s.kv_len);
}

}  // namespace

AttentionSizes attention_sizes(const Problem& problem) {
  const auto& attrs = attrs_as<AttentionAttrs>(*problem.attrs);
  const Dims& q = problem.inputs[0].shape;
  const Dims& k = problem.inputs[1].shape;
  AttentionSizes s;
  s.batch = q[0];
  s.heads = q[1];
  s.kv_heads = k[1];
  s.group = s.kv_heads == 0 ? 0 : s.heads / s.kv_heads;
  s.q_len = q[2];
  s.kv_len = k[2];
  s.head_dim = q[3];
  s.value_dim = problem.inputs[2].shape[3];
  s.scale = attrs.scale.value_or(1 / std::sqrt(static_cast<double>(s.head_dim)));
  s.mask.kv_len = s.kv_len;
  s.mask.causal = attrs.causal;
  s.mask.offset = attrs.causal_offset == CausalOffset::kTopLeft ? 0 : s.kv_len - s.q_len;
  return s;
}

std::vector<OracleOutput> attention_oracle(const Problem& problem,
                                           std::span<const F64Tensor> inputs);

const OpDef kAttentionOp = {
    .name = "attention",
    .min_inputs = 3,
    .max_inputs = 3,
    .input_names = "q, k, v",
    .parse = parse,
    .infer = infer,
    .work = work,
    .sum_length = sum_length,
    .oracle = attention_oracle,
};

}  // namespace me
