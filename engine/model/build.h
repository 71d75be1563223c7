// From a parsed model to a Graph.
#pragma once

#include <string>

#include "engine/model/graph.h"
#include "proto/model.pb.h"

namespace me {

// Checks every rule of proto/model.proto that parsing leaves open, reads the weights and infers the
// types as far as they are known without symbols. `path` is the model file's. Requires strings that
// are UTF-8 and enum values that have names. Errors name node and field, but not the file.
Result<Graph> build_graph(const microengine::Model& model, const std::string& path);

}  // namespace me
