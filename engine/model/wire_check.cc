#include "engine/model/wire_check.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace me {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr int kMaxDepth = 32;
constexpr int64_t kMaxParts = 4 << 20;  // repeated messages and strings: up to 1 GiB when parsed

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

std::string_view in_words(uint32_t wire_type) {
  switch (wire_type) {
    case kVarint:
      return "a varint";
    case kFixed64:
      return "8 bytes";
    case kLength:
      return "a length and bytes";
    case 3:
    case 4:
      return "a group";
    case kFixed32:
      return "4 bytes";
    default:
      return "a wire type that does not exist";
  }
}

WireType wire_type_of(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
      return kFixed64;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
      return kFixed32;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE:
      return kLength;
    default:
      return kVarint;
  }
}

// Whether the library would keep `value` as it is.
bool fits(const FieldDescriptor& field, uint64_t value) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_BOOL:
      return value <= 1;
    case FieldDescriptor::TYPE_UINT32:
    case FieldDescriptor::TYPE_SINT32:
      return value <= UINT32_MAX;
    case FieldDescriptor::TYPE_INT32:
    case FieldDescriptor::TYPE_ENUM: {
      const auto number = static_cast<int64_t>(value);
      return number >= INT32_MIN && number <= INT32_MAX;
    }
    default:
      return true;
  }
}

class WireCheck {
 public:
  explicit WireCheck(std::string_view bytes) : bytes_(bytes) {}

  // Reads one message of `type` that ends before `end`.
  Status message(const Descriptor& type, size_t end, int depth) {
    if (depth > kMaxDepth) return fault(at_, "found messages nested deeper than 32");
    std::vector<int> occurrences(static_cast<size_t>(type.field_count()));  // by slot_of
    while (at_ < end) {
      const size_t start = at_;
      const std::optional<uint64_t> tag = varint(end);
      if (!tag) return fault(start, "found a cut-off or overlong varint, expected a field's tag");
      const uint64_t number = *tag >> 3;
      const auto wire_type = static_cast<uint32_t>(*tag & 7);
      const FieldDescriptor* field = number >= 1 && number <= FieldDescriptor::kMaxNumber
                                         ? type.FindFieldByNumber(static_cast<int>(number))
                                         : nullptr;
      if (field == nullptr) {
        return fault(start, fmt::format("found field number {}, expected a field of {} (is the "
                                        "model newer than this engine?)",
                                        number, std::string(type.name())));
      }
      const int index = occurrences[slot_of(*field)]++;
      Status status = Ok{};
      if (!field->is_repeated() && index > 0) {
        const bool choice = field->real_containing_oneof() != nullptr;
        status = fault(start, choice ? "found a second choice, expected one of them"
                                     : "found the field again, expected it once");
      } else {
        status = this->field(*field, wire_type, end, depth);
      }
      if (!status.ok()) {
        std::string step(field->name());
        // Numbers may come packed, so that occurrences are not elements.
        if (field->is_repeated() && !field->is_packable()) step += fmt::format("[{}]", index);
        std::string& path = status.error().field;
        path = path.empty() ? step : step + "." + path;
        return status;
      }
    }
    return Ok{};
  }

 private:
  static Error fault(size_t at, std::string_view message) {
    return invalid(fmt::format("byte {}: {}", at, message));
  }

  // A oneof counts as one: by the index of its first field.
  static size_t slot_of(const FieldDescriptor& field) {
    const auto* oneof = field.real_containing_oneof();
    return static_cast<size_t>(oneof == nullptr ? field.index() : oneof->field(0)->index());
  }

  Status field(const FieldDescriptor& field, uint32_t wire_type, size_t end, int depth) {
    const WireType expected = wire_type_of(field);
    const bool packed = field.is_packable() && wire_type == kLength;
    const size_t start = at_;
    if (wire_type != expected && !packed) {
      return fault(start,
                   fmt::format("found {}, expected {}", in_words(wire_type), in_words(expected)));
    }
    if (wire_type != kLength) return scalar(field, end);

    const std::optional<uint64_t> length = varint(end);
    if (!length) return fault(start, "found a cut-off or overlong varint, expected a length");
    if (*length > end - at_) {
      return fault(start, fmt::format("found a length of {}, expected at most the {} bytes left",
                                      *length, end - at_));
    }
    const size_t field_end = at_ + static_cast<size_t>(*length);
    if (packed) {
      while (at_ < field_end) ME_RETURN_IF_ERROR(scalar(field, field_end));
      return Ok{};
    }
    if (field.is_repeated() && ++parts_ > kMaxParts) {
      return fault(start,
                   fmt::format("found more than {} repeated messages and strings", kMaxParts));
    }
    if (field.type() == FieldDescriptor::TYPE_MESSAGE) {
      return message(*field.message_type(), field_end, depth + 1);
    }
    if (field.type() == FieldDescriptor::TYPE_STRING &&
        !is_utf8(bytes_.substr(at_, static_cast<size_t>(*length)))) {
      return fault(at_, "found bytes that are not UTF-8, expected a string");
    }
    at_ = field_end;
    return Ok{};
  }

  Status scalar(const FieldDescriptor& field, size_t end) {
    const size_t start = at_;
    const WireType type = wire_type_of(field);
    if (type == kVarint) {
      const std::optional<uint64_t> value = varint(end);
      if (!value) return fault(start, "found a cut-off or overlong varint");
      if (!fits(field, *value)) {
        return fault(
            start, fmt::format("found {}, expected a value of type {}", *value, field.type_name()));
      }
      return Ok{};
    }
    const size_t size = type == kFixed64 ? 8 : 4;
    if (end - at_ < size) {
      return fault(start, fmt::format("found {} bytes, expected {}", end - at_, size));
    }
    at_ += size;
    return Ok{};
  }

  // Nothing where it runs over `end` or past 64 bits.
  std::optional<uint64_t> varint(size_t end) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && at_ < end; shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      if (shift == 63 && byte > 1) return std::nullopt;
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::string_view bytes_;
  size_t at_ = 0;
  int64_t parts_ = 0;
};

}  // namespace

Status check_wire(std::string_view bytes, const Descriptor& type) {
  return WireCheck(bytes).message(type, bytes.size(), 1);
}

}  // namespace me
