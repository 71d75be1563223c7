// y = a + b, elementwise, of two tensors of one type. Broadcasting is a view of its own.
#pragma once

#include "ops/base/op.h"

namespace me {

struct AddAttrs : Attrs {};

extern const OpDef kAddOp;

}  // namespace me
