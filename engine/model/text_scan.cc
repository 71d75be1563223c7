#include "engine/model/text_scan.h"

#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/common.h>

#include <iterator>
#include <vector>

#include "engine/model/text_errors.h"

namespace me {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::Tokenizer;

class Scan {
 public:
  Scan(std::string_view text, std::string_view target)
      : stream_(text.data(), static_cast<int>(text.size())),
        tokens_(&stream_, &errors_),
        target_(target) {
    // As the text parser has them.
    tokens_.set_allow_f_after_float(true);
    tokens_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    tokens_.set_require_space_after_number(false);
    tokens_.set_allow_multiline_strings(true);
    tokens_.Next();
  }

  void message(const Descriptor& type) {
    std::vector<int> occurrences(static_cast<size_t>(type.field_count()));
    while (!done_ && !is("}") && !is(">") && !at_end()) {
      if (is(";") || is(",")) {
        tokens_.Next();
        continue;
      }
      const FieldDescriptor* field = type.FindFieldByName(tokens_.current().text);
      if (field == nullptr) {
        done_ = true;
        return;
      }
      const TextPlace start{tokens_.current().line + 1, tokens_.current().column + 1};
      int& index = occurrences[static_cast<size_t>(field->index())];
      if (!field->is_repeated() && index > 0 && target_.empty()) {
        path_ += field->name();
        repeated = RepeatedField{start, path_};
        done_ = true;
        return;
      }
      // A repeated field as a whole stands where its first elements do.
      if (!target_.empty() && target_ == path_ + std::string(field->name())) {
        place = start;
        done_ = true;
        return;
      }
      tokens_.Next();
      if (is(":")) tokens_.Next();
      if (!is("[")) {
        element(*field, index++, start);
        continue;
      }
      tokens_.Next();
      while (!done_ && !is("]") && !at_end()) {
        const TextPlace own{tokens_.current().line + 1, tokens_.current().column + 1};
        element(*field, index++, own);
        if (is(",")) tokens_.Next();
      }
      tokens_.Next();
    }
  }

  std::optional<RepeatedField> repeated;
  std::optional<TextPlace> place;

 private:
  bool is(std::string_view symbol) { return tokens_.current().text == symbol; }
  bool at_end() { return tokens_.current().type == Tokenizer::TYPE_END; }

  void element(const FieldDescriptor& field, int index, TextPlace where) {
    const size_t outer = path_.size();
    path_ += field.name();
    if (field.is_repeated()) fmt::format_to(std::back_inserter(path_), "[{}]", index);
    if (!target_.empty() && target_.substr(0, path_.size()) == path_) {
      const std::string_view rest = target_.substr(path_.size());
      if (rest.empty() || rest[0] == '.') place = where;
      done_ = rest.empty();
    }
    if (field.type() == FieldDescriptor::TYPE_MESSAGE) {
      path_ += '.';
      tokens_.Next();
      message(*field.message_type());
      tokens_.Next();
    } else if (tokens_.current().type == Tokenizer::TYPE_STRING) {
      while (tokens_.current().type == Tokenizer::TYPE_STRING) tokens_.Next();
    } else {
      if (is("-")) tokens_.Next();
      tokens_.Next();
    }
    path_.resize(outer);
  }

  google::protobuf::io::ArrayInputStream stream_;
  FirstTextError errors_;
  Tokenizer tokens_;
  std::string_view target_;  // empty: look for repeated fields
  std::string path_;
  bool done_ = false;
};

}  // namespace

std::optional<RepeatedField> find_repeated_field(std::string_view text, const Descriptor& type) {
  Scan scan(text, "");
  scan.message(type);
  return scan.repeated;
}

std::optional<TextPlace> find_place(std::string_view text, const Descriptor& type,
                                    std::string_view path) {
  Scan scan(text, path);
  scan.message(type);
  return scan.place;
}

}  // namespace me
