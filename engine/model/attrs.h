// From the messages' fields to the types that ops take.
#pragma once

#include <google/protobuf/message.h>

#include <optional>
#include <string>
#include <vector>

#include "ops/base/op.h"
#include "proto/model.pb.h"

namespace me {

// The element type, or nothing where it is unspecified.
std::optional<DType> dtype_of(microengine::DType dtype);

// Refuses a dimension with neither size nor symbol, and a symbol that is no identifier of up to 256
// bytes. The size is not judged. Errors have `field` set to `path`.
Result<Dim> parse_dim(const microengine::Dim& dim, const std::string& path);

// The fields that the op's message sets: see AttrMap. Knows no op; a field of a type that AttrValue
// cannot hold is an error. `path` is the message's, for errors.
Result<AttrMap> parse_attrs(const google::protobuf::Message& message, const std::string& path);

// An error of kind kInvalid at `field`.
Error fault(std::string field, std::string message, std::string node = {});

}  // namespace me
