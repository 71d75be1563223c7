#include "ops/attention/attention.h"

namespace me {

const OpDef kAttentionOp = {.name = "attention"};

}  // namespace me
