// A strict reading of protobuf's wire format, before the library reads it generously.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string_view>

#include "ops/base/status.h"

namespace me {

// Whether `bytes` are one message of `type` and nothing else. The library keeps unknown fields,
// lets the last of two singular values win, merges messages and cuts integers to their type; here
// all of that is refused, as are groups, strings that are not UTF-8, and so many parts that parsing
// them would take many times the file's size. Errors carry the field's path and the offset in
// bytes.
Status check_wire(std::string_view bytes, const google::protobuf::Descriptor& type);

}  // namespace me
