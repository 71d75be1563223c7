#pragma once

#include "ops/base/op.h"

namespace me {

extern const OpDef kSoftmaxGradOp;

}  // namespace me
