#include "ops/base/status.h"

#include <cstdint>
#include <cstdio>

namespace me {
namespace {

constexpr size_t kMaxQuotedBytes = 128;

// Length of the valid UTF-8 sequence at the start of `s`, or 0 when there is none. Overlong forms,
// surrogates and code points past U+10FFFF are not valid (RFC 3629).
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const auto continued = [&](size_t i) { return i < s.size() && (byte(i) & 0xC0) == 0x80; };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continued(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (!continued(1) || !continued(2)) return 0;
    if (lead == 0xE0 && byte(1) < 0xA0) return 0;
    if (lead == 0xED && byte(1) > 0x9F) return 0;
    return 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (!continued(1) || !continued(2) || !continued(3)) return 0;
    if (lead == 0xF0 && byte(1) < 0x90) return 0;
    if (lead == 0xF4 && byte(1) > 0x8F) return 0;
    return 4;
  }
  return 0;
}

// C1 controls (U+0080 to U+009F) steer terminals as the C0 ones do.
bool is_c1_control(std::string_view s) {
  return static_cast<uint8_t>(s[0]) == 0xC2 && static_cast<uint8_t>(s[1]) < 0xA0;
}

std::string escaped(std::string_view text, bool escape_quotes) {
  std::string out;
  const bool cut = text.size() > kMaxQuotedBytes;
  size_t i = 0;
  while (i < text.size() && i < kMaxQuotedBytes) {
    const size_t length = utf8_length(text.substr(i));
    const char c = text[i];
    const bool plain = length > 1 ? !is_c1_control(text.substr(i))
                                  : length == 1 && c >= 0x20 && c != 0x7F &&
                                        !(escape_quotes && (c == '"' || c == '\\'));
    if (plain) {
      out.append(text.substr(i, length));
      i += length;
    } else if (c == '\n') {
      out += "\\n";
      ++i;
    } else if (escape_quotes && (c == '"' || c == '\\')) {
      out += '\\';
      out += c;
      ++i;
    } else {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\x%02x",
                    static_cast<unsigned>(static_cast<uint8_t>(c)));
      out += buffer;
      ++i;
    }
  }
  if (cut) out += "...";
  return out;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string in_quotes(std::string_view text) { return '"' + escaped(text, true) + '"'; }

std::string Error::to_string() const {
  std::string out;
  if (!file.empty()) out += escaped(file, false) + ": ";
  if (!node.empty()) out += "node " + in_quotes(node) + ": ";
  if (!field.empty()) out += escaped(field, false) + ": ";
  return out + message;
}

}  // namespace me
