// The gradient of softmax from its output y and the gradient g of that: dx = y ∘ (g - Σ y·g), the
// sum along the last axis.
#pragma once

#include "ops/base/op.h"

namespace me {

struct SoftmaxGradAttrs : Attrs {};

extern const OpDef kSoftmaxGradOp;

}  // namespace me
