// Symbols get their numbers.
#pragma once

#include <map>
#include <string>

#include "engine/model/graph.h"

namespace me {

// `given` (from the command line) together with what the shapes of inputs say. An input's shape
// must have the model's rank and numbers; a symbol must have one value. Every symbol of the graph
// has to end up with one, and `given` may name no other.
Result<Symbols> bind_symbols(const Graph& graph, const Symbols& given,
                             const std::map<std::string, Dims>& input_shapes);

// "[batch, 64]"
std::string to_string(const std::vector<Dim>& dims);

}  // namespace me
