#include "engine/model/attrs.h"

#include <fmt/format.h>

#include <algorithm>

namespace me {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMaxSymbolBytes = 256;

bool is_identifier(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !text.empty() && letter(text[0]) && std::all_of(text.begin(), text.end(), [&](char c) {
    return letter(c) || (c >= '0' && c <= '9');
  });
}

Result<AttrValue> repeated(const Message& message, const FieldDescriptor& field,
                           const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  const int size = reflection.FieldSize(message, &field);
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    std::vector<int64_t> values;
    for (int i = 0; i < size; ++i) {
      values.push_back(reflection.GetRepeatedInt64(message, &field, i));
    }
    return AttrValue(std::move(values));
  }
  if (field.message_type() == microengine::Dim::descriptor()) {
    std::vector<Dim> dims;
    for (int i = 0; i < size; ++i) {
      const Message& dim = reflection.GetRepeatedMessage(message, &field, i);
      ME_ASSIGN_OR_RETURN(Dim parsed, parse_dim(static_cast<const microengine::Dim&>(dim),
                                                fmt::format("{}[{}]", path, i)));
      dims.push_back(std::move(parsed));
    }
    return AttrValue(std::move(dims));
  }
  return fault(path, "found a repeated field of a type that the engine cannot read");
}

Result<AttrValue> singular(const Message& message, const FieldDescriptor& field,
                           const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return AttrValue(reflection.GetBool(message, &field));
    case FieldDescriptor::CPPTYPE_INT32:
      return AttrValue(int64_t{reflection.GetInt32(message, &field)});
    case FieldDescriptor::CPPTYPE_UINT32:
      return AttrValue(int64_t{reflection.GetUInt32(message, &field)});
    case FieldDescriptor::CPPTYPE_INT64:
      return AttrValue(int64_t{reflection.GetInt64(message, &field)});
    case FieldDescriptor::CPPTYPE_FLOAT:
      return AttrValue(double{reflection.GetFloat(message, &field)});
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return AttrValue(reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return AttrValue(reflection.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return AttrValue(std::string(reflection.GetEnum(message, &field)->name()));
    default:
      return fault(path, "found a field of a type that the engine cannot read");
  }
}

}  // namespace

Error fault(std::string field, std::string message, std::string node) {
  Error error = invalid(std::move(message));
  error.field = std::move(field);
  error.node = std::move(node);
  return error;
}

std::optional<DType> dtype_of(microengine::DType dtype) {
  switch (dtype) {
    case microengine::F32:
      return DType::kF32;
    case microengine::F16:
      return DType::kF16;
    case microengine::BF16:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

Result<Dim> parse_dim(const microengine::Dim& dim, const std::string& path) {
  switch (dim.dim_case()) {
    case microengine::Dim::kSize:
      return Dim{dim.size(), {}};
    case microengine::Dim::kSymbol:
      if (!is_identifier(dim.symbol()) || dim.symbol().size() > kMaxSymbolBytes) {
        return fault(path + ".symbol",
                     fmt::format("found {}, expected a letter or _ followed by letters, digits and "
                                 "_, {} bytes at most",
                                 in_quotes(dim.symbol()), kMaxSymbolBytes));
      }
      return Dim{kUnknownDim, dim.symbol()};
    default:
      return fault(path, "found neither, expected a size or a symbol");
  }
}

Result<AttrMap> parse_attrs(const Message& message, const std::string& path) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  AttrMap attrs;
  for (const FieldDescriptor* field : fields) {
    const std::string name(field->name());
    const std::string field_path = path + "." + name;
    ME_ASSIGN_OR_RETURN(AttrValue value, field->is_repeated()
                                             ? repeated(message, *field, field_path)
                                             : singular(message, *field, field_path));
    attrs.emplace(name, std::move(value));
  }
  return attrs;
}

}  // namespace me
