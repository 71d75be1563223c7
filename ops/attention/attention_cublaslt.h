// The attention op as cuBLASLt products around a softmax of materialised scores. Arithmetic only.
//
//   S = scale·Q·Kᵀ   in the workspace, in the inputs' type     [batch, heads, q_len, scores_ld]
//   P = softmax(S)   in place, by a kernel of our own
//   O = P·V
//
// The library's terms are column-major, so each product is computed transposed, where both sides
// lie as their row-major originals do:
//
//   D = Sᵀ [kv_len, q_len]     = op(A) = K  [kv_len, head_dim]   · op(B) = Qᵀ [head_dim, q_len]
//   D = Oᵀ [value_dim, q_len]  = op(A) = Vᵀ [value_dim, kv_len]  · op(B) = Pᵀ [kv_len, q_len]
//
// A launch is a batch of such products, with one batch stride for each operand. The batch, the
// heads of K and the query heads of a group are three axes; as many of them as have one stride for
// all operands together become the batch, and a launch each goes to what is left:
//
//   [B, H, S, D] dense            one launch
//   [B, S, H, D] seen as that     one launch for a batch of 1, else one to each batch entry or to
//                                 each head, whichever are fewer
//   grouped heads                 the group's queries are rows of one product where they lie one
//                                 stride apart (dense, or a single query); else a launch to each
#pragma once

#include <vector>

#include "ops/attention/attention.h"
#include "ops/cuda/lt_product.h"

namespace me {

// Products of one kind: launch i starts at these elements of its operands.
struct LtLaunches {
  struct Offsets {
    int64_t a = 0;
    int64_t b = 0;
    int64_t d = 0;
  };
  LtProduct product;
  std::vector<Offsets> at;
};

constexpr size_t kMostLtLaunches = 64;  // of each product

struct AttentionLtPlan {
  AttentionSizes sizes;
  int64_t scores_ld = 0;  // a multiple of 16 bytes
  int64_t scores_rows = 0;
  int64_t scores_bytes = 0;
  LtLaunches scores;  // A: K, B: Q, D: S
  LtLaunches values;  // A: V, B: P, D: O
};

// The plan, or why there is none. Requires an output that is not empty.
Result<AttentionLtPlan> attention_lt_plan(const Problem& problem);

}  // namespace me
