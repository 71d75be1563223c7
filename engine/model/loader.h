// From a model file, which is untrusted, to a Graph.
#pragma once

#include <string>

#include "engine/model/graph.h"

namespace me {

enum class ModelFormat : uint8_t { kText, kBinary };

// Text for .txtpb, binary for .pb; any other ending is an error.
Result<ModelFormat> format_of(const std::string& path);

// Reads, parses and validates. Whatever can be checked without the values of symbols is: see
// proto/model.proto for the rules and limits. Errors are of kind kInvalid and name the file, the
// node and the field (for text also line and column), what was found and what was expected.
Result<Graph> load_model(const std::string& path);

// Validates the model at `from` and writes it to `to` in the format of its name. Weights in files
// of their own stay where they are, so both must lie in one folder when there are any. The file at
// `to` is whole or untouched. Equal models give equal bytes.
Status convert_model(const std::string& from, const std::string& to);

}  // namespace me
