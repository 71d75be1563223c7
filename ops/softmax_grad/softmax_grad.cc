#include "ops/softmax_grad/softmax_grad.h"

namespace me {

const OpDef kSoftmaxGradOp = {.name = "softmax_grad"};

}  // namespace me
