// The order in which nodes run.
#pragma once

#include <vector>

#include "engine/model/graph.h"

namespace me {

// Indices of the nodes, each after the producers of its inputs; where that leaves a choice, in the
// order given. A cycle is an error that names the nodes of one.
Result<std::vector<int>> topological_order(const std::vector<Node>& nodes,
                                           const std::vector<Value>& values);

}  // namespace me
