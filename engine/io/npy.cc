#include "engine/io/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <optional>

#include "engine/io/file.h"
#include "engine/io/support.h"

namespace me {
namespace {

static_assert(std::endian::native == std::endian::little, "files and memory share a byte order");

constexpr size_t kMostHeaderBytes = 65536;
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kHeaderAlignment = 64;

struct TypeRow {
  ArrayType type;
  std::string_view name;
  std::string_view npy;  // kind and size, as a descr has them after the byte order
  int64_t size;
};

constexpr TypeRow kTypes[] = {
    {ArrayType::kF32, "float32", "f4", 4},   {ArrayType::kF16, "float16", "f2", 2},
    {ArrayType::kBF16, "bfloat16", "V2", 2}, {ArrayType::kF64, "float64", "f8", 8},
    {ArrayType::kI64, "int64", "i8", 8},     {ArrayType::kI32, "int32", "i4", 4},
    {ArrayType::kI8, "int8", "i1", 1},       {ArrayType::kU8, "uint8", "u1", 1},
    {ArrayType::kBool, "bool", "b1", 1},
};

const TypeRow& row_of(ArrayType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row;
  }
  return kTypes[0];
}

struct Header {
  std::string descr;
  bool fortran_order = false;
  Dims shape;
};

// The header's grammar: a Python dict literal with the keys descr (a string), fortran_order (True
// or False) and shape (a tuple of integers), each once, in any order.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  // An error message, or nothing and `header` is filled.
  std::optional<std::string> parse(Header& header) {
    bool seen_descr = false;
    bool seen_order = false;
    bool seen_shape = false;
    if (!take('{')) return "the header is not a dict";
    while (!take('}')) {
      std::string key;
      if (!string(key) || !take(':')) return "the header is not a dict of named fields";
      bool* seen = key == "descr"           ? &seen_descr
                   : key == "fortran_order" ? &seen_order
                   : key == "shape"         ? &seen_shape
                                            : nullptr;
      if (seen == nullptr) return "the header has the unknown key " + in_quotes(key);
      if (*seen) return "the header has " + key + " twice";
      *seen = true;
      if (key == "descr") {
        skip_space();
        if (rest().starts_with('[')) return "found a structured dtype, expected one number";
        if (!string(header.descr)) return "descr is not a string";
      } else if (key == "fortran_order") {
        if (!boolean(header.fortran_order)) return "fortran_order is neither True nor False";
      } else if (auto error = tuple(header.shape)) {
        return error;
      }
      if (!take(',') && !rest().starts_with('}')) {  // take has skipped the space
        return "the header's fields are not separated by commas";
      }
    }
    skip_space();
    if (!rest().empty()) return "the header goes on behind its dict";
    if (!seen_descr || !seen_order || !seen_shape) {
      return "the header lacks descr, fortran_order or shape";
    }
    return std::nullopt;
  }

 private:
  std::string_view rest() const { return text_.substr(at_); }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool string(std::string& out) {
    skip_space();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return out.find('\\') == std::string::npos;
  }
  bool boolean(bool& out) {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (rest().starts_with(word)) {
        at_ += word.size();
        out = value;
        return true;
      }
    }
    return false;
  }
  // Digits without a sign or leading zeros, as Python writes an int.
  bool extent(int64_t& out) {
    skip_space();
    const size_t begin = at_;
    for (out = 0; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      const int digit = text_[at_] - '0';
      if (out > (INT64_MAX - digit) / 10) return false;
      out = out * 10 + digit;
    }
    return at_ == begin + 1 || (at_ > begin && text_[begin] != '0');
  }
  std::optional<std::string> tuple(Dims& shape) {
    if (!take('(')) return "shape is not a tuple";
    bool comma = false;
    while (!take(')')) {
      int64_t value = 0;
      if (!extent(value)) return "shape holds something other than extents from 0 to 2^63-1";
      if (shape.rank() == kMaxRank) return fmt::format("found a rank over {}", kMaxRank);
      shape.push_back(value);
      comma = take(',');
      skip_space();
      const bool closed = rest().starts_with(')');
      if (!comma && !closed) return "shape's extents are not separated by commas";
      if (!comma && shape.rank() == 1) return "shape is a number in parentheses, not a tuple";
    }
    return std::nullopt;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// The type of a descr, and whether its bytes have to be swapped. '|' means that there is no byte
// order to speak of: single bytes and void.
std::optional<std::pair<ArrayType, bool>> type_of(std::string_view descr) {
  if (descr.empty()) return std::nullopt;
  const char order = descr[0];
  for (const TypeRow& row : kTypes) {
    if (descr.substr(1) != row.npy) continue;
    const bool orderless = row.size == 1 || row.type == ArrayType::kBF16;
    if (order == '<' || order == '=') return std::pair{row.type, false};
    if (order == '>') return std::pair{row.type, row.size > 1};
    if (order == '|' && orderless) return std::pair{row.type, false};
  }
  return std::nullopt;
}

void swap_bytes(std::vector<std::byte>& bytes, size_t item) {
  for (size_t i = 0; i + item <= bytes.size(); i += item) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                 bytes.begin() + static_cast<std::ptrdiff_t>(i + item));
  }
}

// Column-major elements into row-major order.
std::vector<std::byte> from_fortran(const std::vector<std::byte>& from, const Dims& shape,
                                    size_t item) {
  TensorDesc desc;
  desc.shape = shape;
  desc.strides = shape;
  int64_t step = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    desc.strides[i] = step;
    step *= shape[i];
  }
  std::vector<std::byte> to(from.size());
  for (int64_t i = 0; i < count(shape); ++i) {
    std::memcpy(to.data() + static_cast<size_t>(i) * item,
                from.data() + static_cast<size_t>(offset_of(desc, i)) * item, item);
  }
  return to;
}

}  // namespace

std::string_view name_of(ArrayType type) { return row_of(type).name; }
int64_t size_of(ArrayType type) { return row_of(type).size; }

double Array::get(int64_t index) const {
  const std::byte* p = bytes.data() + index * size_of(type);
  const auto read = [p]<class T>(T value) {
    std::memcpy(&value, p, sizeof value);
    return value;
  };
  switch (type) {
    case ArrayType::kF32:
      return read(float{});
    case ArrayType::kF16:
      return f16_to_f32(read(uint16_t{}));
    case ArrayType::kBF16:
      return bf16_to_f32(read(uint16_t{}));
    case ArrayType::kF64:
      return read(double{});
    case ArrayType::kI64:
      return static_cast<double>(read(int64_t{}));
    case ArrayType::kI32:
      return read(int32_t{});
    case ArrayType::kI8:
      return read(int8_t{});
    case ArrayType::kU8:
      return read(uint8_t{});
    case ArrayType::kBool:
      return read(uint8_t{}) != 0 ? 1 : 0;
  }
  return 0;
}

Result<Array> read_npy(const std::string& path) {
  ME_ASSIGN_OR_RETURN(const InputFile file, open_input(path));
  const auto read_text = [&](std::string& into) -> Result<bool> {
    ME_ASSIGN_OR_RETURN(const size_t n,
                        read_into(file, std::as_writable_bytes(std::span(into)), path));
    return n == into.size();
  };
  std::string start(kMagic.size() + 2, '\0');  // with the version
  ME_ASSIGN_OR_RETURN(const bool has_start, read_text(start));
  if (!has_start || !start.starts_with(kMagic)) {
    return at_file(path, "not a .npy file: it does not start with \\x93NUMPY and a version");
  }
  const int major = static_cast<uint8_t>(start[kMagic.size()]);
  const int minor = static_cast<uint8_t>(start[kMagic.size() + 1]);
  if (major < 1 || major > 3 || minor != 0) {
    return at_file(path,
                   fmt::format("found .npy version {}.{}, expected 1.0, 2.0 or 3.0", major, minor));
  }
  std::string length(major == 1 ? 2 : 4, '\0');
  ME_ASSIGN_OR_RETURN(const bool has_length, read_text(length));
  size_t header_bytes = 0;
  for (size_t i = 0; i < length.size(); ++i) {
    header_bytes |= static_cast<size_t>(static_cast<uint8_t>(length[i])) << (8 * i);
  }
  if (header_bytes > kMostHeaderBytes) {
    return at_file(path, fmt::format("found a header of {} bytes, expected at most {}",
                                     header_bytes, kMostHeaderBytes));
  }
  std::string text(header_bytes, '\0');
  ME_ASSIGN_OR_RETURN(const bool has_text, read_text(text));
  if (!has_length || !has_text) return at_file(path, "the file ends inside the header");

  Header header;
  HeaderParser parser(text);
  if (const auto fault = parser.parse(header)) return at_file(path, *fault);
  const auto type = type_of(header.descr);
  if (!type) {
    const bool object = header.descr.size() > 1 && header.descr[1] == 'O';
    return at_file(
        path, fmt::format("found dtype {}{}, expected a float, a signed integer, uint8 or bool",
                          in_quotes(header.descr), object ? " (Python objects)" : ""));
  }
  const auto elements = checked_count(header.shape);
  const int64_t data_bytes =
      file.bytes - static_cast<int64_t>(start.size() + length.size() + text.size());
  if (!elements || *elements * size_of(type->first) != data_bytes) {
    return at_file(path, fmt::format("found {} bytes of data, expected those of {}{}", data_bytes,
                                     name_of(type->first), to_string(header.shape)));
  }
  try {
    Array array{type->first, header.shape, {}};
    array.bytes.resize(static_cast<size_t>(data_bytes));
    ME_ASSIGN_OR_RETURN(const size_t n, read_into(file, array.bytes, path));
    if (n != array.bytes.size()) return at_file(path, "the file became shorter while it was read");
    const auto item = static_cast<size_t>(size_of(array.type));
    if (type->second) swap_bytes(array.bytes, item);
    if (header.fortran_order) array.bytes = from_fortran(array.bytes, array.shape, item);
    return array;
  } catch (const std::bad_alloc&) {
    return at_file(path,
                   fmt::format("found {} bytes of data, more than there is memory for", data_bytes),
                   ErrorKind::kRuntime);
  }
}

Status write_npy(const std::string& path, const TensorView& tensor) {
  const bool half = tensor.dtype == DType::kF16;
  std::string shape = "(";
  for (int i = 0; i < tensor.shape.rank(); ++i) {
    shape += fmt::format("{}{}", i > 0 ? ", " : "", tensor.shape[i]);
  }
  if (tensor.shape.rank() == 1) shape += ',';
  shape += ')';
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                   half ? "<f2" : "<f4", shape);
  const size_t prefix = kMagic.size() + 4;
  const size_t unpadded = prefix + header.size() + 1;
  header.append((kHeaderAlignment - unpadded % kHeaderAlignment) % kHeaderAlignment, ' ');
  header += '\n';
  std::string start(kMagic);
  start += '\1';
  start += '\0';
  start += static_cast<char>(header.size() & 0xFF);
  start += static_cast<char>(header.size() >> 8);
  start += header;

  std::vector<std::byte> data = dense_bytes(tensor);
  if (tensor.dtype == DType::kBF16) {
    const auto n = static_cast<size_t>(tensor.count());
    std::vector<std::byte> wide(4 * n);
    for (size_t i = 0; i < n; ++i) {
      const float value = load_f32(data.data(), static_cast<int64_t>(i), DType::kBF16);
      std::memcpy(wide.data() + 4 * i, &value, 4);
    }
    data = std::move(wide);
  }
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(start)), data};
  return write_file(path, parts);
}

}  // namespace me
