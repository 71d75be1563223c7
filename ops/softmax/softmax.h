#pragma once

#include "ops/base/op.h"

namespace me {

extern const OpDef kSoftmaxOp;

}  // namespace me
