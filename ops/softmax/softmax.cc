#include "ops/softmax/softmax.h"

namespace me {

const OpDef kSoftmaxOp = {.name = "softmax"};

}  // namespace me
