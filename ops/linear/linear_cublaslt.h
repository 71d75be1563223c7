// The linear op as a product of cuBLASLt. Arithmetic only.
//
// Y = act(X·W + b) is row-major, and the library adds a bias along the rows of a column-major
// result only. So it computes Yᵀ = Wᵀ·Xᵀ, which lies in memory as Y does:
//
//   D [N, M] = act(op(A) [N, K] · op(B) [K, M] + b)     A: W, B: X, D: Y
//
// W [N, K] is read transposed, W [K, N] as it lies; a transposed X is read transposed too.
#pragma once

#include "ops/cuda/lt_product.h"
#include "ops/linear/linear.h"

namespace me {

// The product, or why there is none. Requires M and N of 1 or more.
Result<LtProduct> linear_lt_product(const Problem& problem);

}  // namespace me
