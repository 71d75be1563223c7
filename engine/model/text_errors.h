// Keeps the first error that protobuf's text parser or tokenizer reports.
#pragma once

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/stubs/common.h>

#include <string>
#include <string_view>

namespace me {

class FirstTextError : public google::protobuf::io::ErrorCollector {
 public:
  // The signature changed in protobuf 22 (C++ version 4.22).
#if GOOGLE_PROTOBUF_VERSION >= 4022000
  void RecordError(int line, google::protobuf::io::ColumnNumber column,
                   absl::string_view message) override {
    keep(line, column, std::string_view(message.data(), message.size()));
  }
#else
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    keep(line, column, message);
  }
#endif

  bool any() const { return any_; }
  int line() const { return line_; }      // from 1; 0 where the parser names none
  int column() const { return column_; }  // from 1
  const std::string& message() const { return message_; }

 private:
  void keep(int line, int column, std::string_view message) {
    if (any_) return;
    any_ = true;
    line_ = line + 1;
    column_ = column + 1;
    message_ = message;
  }

  bool any_ = false;
  int line_ = 0;
  int column_ = 0;
  std::string message_;
};

}  // namespace me
