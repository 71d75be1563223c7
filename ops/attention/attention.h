// O = softmax(scale · Q·Kᵀ + mask) · V for each batch entry and head.
//
// Q [batch, heads, q_len, head_dim], K [batch, kv_heads, kv_len, head_dim],
// V [batch, kv_heads, kv_len, value_dim], O [batch, heads, q_len, value_dim]; heads is a multiple
// of kv_heads and head h reads K and V of head h / (heads / kv_heads).
//
// A query that sees no key gives 0. One that sees keys but whose scores are all -inf gives NaN, as
// does one with a NaN or +inf among the scores it sees: the softmax of such a row is NaN.
#pragma once

#include <optional>

#include "ops/attention/mask.h"
#include "ops/base/op.h"

namespace me {

constexpr int64_t kMaxHeadDim = 256;  // of head_dim and value_dim

enum class CausalOffset : uint8_t {
  kBottomRight,  // kv_len - q_len: the last query sees every key
  kTopLeft,      // 0: the first query sees the first key only
};

struct AttentionAttrs : Attrs {
  std::optional<double> scale;  // 1/sqrt(head_dim) where the model leaves it out
  bool causal = false;
  CausalOffset causal_offset = CausalOffset::kBottomRight;
};

// A problem's extents, and what its attributes make of them.
struct AttentionSizes {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t group = 0;  // query heads for each head of K and V; 0 where there are none
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  double scale = 0;
  KeyMask mask;
};
AttentionSizes attention_sizes(const Problem& problem);

extern const OpDef kAttentionOp;

}  // namespace me
