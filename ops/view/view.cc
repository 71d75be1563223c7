#include "ops/view/view.h"

namespace me {

const OpDef kReshapeOp = {.name = "reshape"};
const OpDef kTransposeOp = {.name = "transpose"};
const OpDef kSliceOp = {.name = "slice"};
const OpDef kBroadcastOp = {.name = "broadcast"};

}  // namespace me
