#include "ops/linear/linear.h"

namespace me {

const OpDef kLinearOp = {.name = "linear"};

}  // namespace me
