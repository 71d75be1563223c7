#include "engine/model/loader.h"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <filesystem>

#include "engine/io/file.h"
#include "engine/model/attrs.h"
#include "engine/model/build.h"
#include "engine/model/text_errors.h"
#include "engine/model/text_scan.h"
#include "engine/model/wire_check.h"

namespace me {
namespace {

namespace pb = microengine;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
constexpr int kMaxTextDepth = 32;
constexpr size_t kMaxMessageBytes = 300;  // of an error of the text parser

constexpr std::string_view kTextHeader =
    "# proto-file: proto/model.proto\n"
    "# proto-message: microengine.Model\n";

std::string in_words(int line, int column) {
  return fmt::format("line {}, column {}: ", line, column);
}

// The text parser quotes the file as it is.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxMessageBytes)) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7F) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  if (text.size() > kMaxMessageBytes) out += "...";
  return out;
}

// What both forms admit and the format does not: enum values without a name, and (in text only)
// strings that are not UTF-8.
Status check_values(const Message& message) {
  const auto* reflection = message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int size = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) {
      Status status = Ok{};
      std::string scratch;
      if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        status =
            check_values(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                              : reflection->GetMessage(message, field));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string& text =
            field->is_repeated()
                ? reflection->GetRepeatedStringReference(message, field, i, &scratch)
                : reflection->GetStringReference(message, field, &scratch);
        if (!is_utf8(text)) {
          status = invalid(fmt::format("found {}, expected UTF-8", in_quotes(text)));
        }
      } else if (field->type() == FieldDescriptor::TYPE_ENUM) {
        const int number = field->is_repeated()
                               ? reflection->GetRepeatedEnumValue(message, field, i)
                               : reflection->GetEnumValue(message, field);
        const auto* type = field->enum_type();
        if (type->FindValueByNumber(number) == nullptr) {
          std::string names;
          for (int v = 0; v < type->value_count(); ++v) {
            const std::string name(type->value(v)->name());
            if (name.ends_with("_UNSPECIFIED")) continue;
            names += (names.empty() ? "" : ", ") + name;
          }
          status = invalid(fmt::format("found {}, expected one of {}", number, names));
        }
      } else {
        break;  // numbers: no element can be wrong
      }
      if (!status.ok()) {
        std::string step(field->name());
        if (field->is_repeated()) step += fmt::format("[{}]", i);
        std::string& path = status.error().field;
        path = path.empty() ? step : step + "." + path;
        return status;
      }
    }
  }
  return Ok{};
}

Result<pb::Model> parse_text(const std::string& text) {
  pb::Model model;
  FirstTextError errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetRecursionLimit(kMaxTextDepth);
  google::protobuf::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  if (!parser.Parse(&stream, &model)) {
    return invalid((errors.line() > 0 ? in_words(errors.line(), errors.column()) : "") +
                   printable(errors.message()));
  }
  if (const auto repeated = find_repeated_field(text, *pb::Model::descriptor())) {
    return fault(repeated->path, in_words(repeated->place.line, repeated->place.column) +
                                     "found the field again, expected it once");
  }
  return model;
}

Result<pb::Model> parse_binary(const std::string& bytes) {
  ME_RETURN_IF_ERROR(check_wire(bytes, *pb::Model::descriptor()));
  pb::Model model;
  if (!model.ParseFromString(bytes)) return invalid("found bytes that are no model");
  return model;
}

// The path in the model of the field that `error` blames.
std::string path_of(const Error& error, const pb::Model& model) {
  const bool complete = error.field.rfind("graph.", 0) == 0 || error.node.empty();
  if (complete) return error.field;
  for (int i = 0; i < model.graph().nodes_size(); ++i) {
    if (model.graph().nodes(i).name() == error.node) {
      return fmt::format("graph.nodes[{}].{}", i, error.field);
    }
  }
  return error.field;
}

struct LoadedModel {
  pb::Model messages;
  Graph graph;
};

Result<LoadedModel> load(const std::string& path) {
  const auto blame = [&](Error error) {
    error.kind = ErrorKind::kInvalid;
    error.file = path;
    return error;
  };
  ME_ASSIGN_OR_RETURN(const ModelFormat format, format_of(path));
  auto content = read_file(path, kMaxFileBytes);
  if (!content.ok()) return blame(std::move(content.error()));
  const bool text = format == ModelFormat::kText;
  auto parsed = text ? parse_text(content.value()) : parse_binary(content.value());
  if (!parsed.ok()) return blame(std::move(parsed.error()));
  LoadedModel loaded{std::move(parsed).value(), {}};

  Status status = check_values(loaded.messages);
  if (status.ok()) {
    auto graph = build_graph(loaded.messages, path);
    if (graph.ok()) {
      loaded.graph = std::move(graph).value();
      return loaded;
    }
    status = std::move(graph.error());
  }
  Error error = blame(std::move(status.error()));
  if (text) {
    const auto place =
        find_place(content.value(), *pb::Model::descriptor(), path_of(error, loaded.messages));
    if (place) error.message = in_words(place->line, place->column) + error.message;
  }
  return error;
}

std::string to_text(const pb::Model& model) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(model, &text);
  return std::string(kTextHeader) + text;
}

std::string to_binary(const pb::Model& model) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  model.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

bool in_one_folder(const std::string& a, const std::string& b) {
  const auto folder = [](const std::string& path) {
    const auto parent = std::filesystem::path(path).parent_path();
    return parent.empty() ? std::filesystem::path(".") : parent;
  };
  std::error_code failed;
  return std::filesystem::equivalent(folder(a), folder(b), failed) && !failed;
}

}  // namespace

Result<ModelFormat> format_of(const std::string& path) {
  if (path.ends_with(".txtpb")) return ModelFormat::kText;
  if (path.ends_with(".pb")) return ModelFormat::kBinary;
  Error error = invalid("expected a name that ends in .txtpb (text) or .pb (binary)");
  error.file = path;
  return error;
}

Result<Graph> load_model(const std::string& path) {
  ME_ASSIGN_OR_RETURN(LoadedModel loaded, load(path));
  return std::move(loaded.graph);
}

Status convert_model(const std::string& from, const std::string& to) {
  ME_ASSIGN_OR_RETURN(const ModelFormat format, format_of(to));
  ME_ASSIGN_OR_RETURN(const LoadedModel loaded, load(from));
  const auto refuse = [&](std::string message) {
    Error error = invalid(std::move(message));
    error.file = to;
    return error;
  };
  for (const pb::Weight& weight : loaded.messages.graph().weights()) {
    if (weight.has_external() && !in_one_folder(from, to)) {
      return refuse(
          fmt::format("found another folder than that of {}, expected the same: weight "
                      "{} lies beside the model",
                      in_quotes(from), in_quotes(weight.name())));
    }
  }
  const std::string content =
      format == ModelFormat::kText ? to_text(loaded.messages) : to_binary(loaded.messages);
  if (static_cast<int64_t>(content.size()) > kMaxFileBytes) {
    return refuse(
        fmt::format("found {} bytes to write, expected at most {}", content.size(), kMaxFileBytes));
  }
  const std::span<const std::byte> part = std::as_bytes(std::span(content));
  return write_file(to, std::span(&part, 1));
}

}  // namespace me
