#pragma once

#include "ops/base/op.h"

namespace me {

extern const OpDef kReshapeOp;
extern const OpDef kTransposeOp;
extern const OpDef kSliceOp;
extern const OpDef kBroadcastOp;

}  // namespace me
