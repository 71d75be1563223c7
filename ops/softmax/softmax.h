// y = exp(x - max) / Σ exp(x - max) along the last axis. The input is any strided view.
#pragma once

#include "ops/base/op.h"

namespace me {

struct SoftmaxAttrs : Attrs {};

extern const OpDef kSoftmaxOp;

}  // namespace me
