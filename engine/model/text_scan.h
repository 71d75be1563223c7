// A second look at a model's text, for what the text parser of protobuf does not tell.
#pragma once

#include <google/protobuf/descriptor.h>

#include <optional>
#include <string>
#include <string_view>

namespace me {

// Counted from 1.
struct TextPlace {
  int line = 0;
  int column = 0;
};

struct RepeatedField {
  TextPlace place;
  std::string path;  // "graph.nodes[3].linear.activation"
};

// Both require text that parses as one message of `type`.

// The first singular field that stands twice. The parser refuses it only where the first value is
// not the default.
std::optional<RepeatedField> find_repeated_field(std::string_view text,
                                                 const google::protobuf::Descriptor& type);

// Where the field at `path` stands, or else the innermost message of the path that stands anywhere.
std::optional<TextPlace> find_place(std::string_view text, const google::protobuf::Descriptor& type,
                                    std::string_view path);

}  // namespace me
