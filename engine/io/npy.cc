#include "engine/io/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>

#include "engine/io/file.h"

namespace me {
namespace {

static_assert(std::endian::native == std::endian::little, "files and memory share a byte order");

constexpr int64_t kMostFileBytes = int64_t{1} << 40;
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

Error at_file(const std::string& path, std::string message) {
  Error error = invalid(std::move(message));
  error.file = path;
  return error;
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
        if (!rest().empty() && rest()[0] == '[') return "a structured dtype, expected one number";
        if (!string(header.descr)) return "descr is not a string";
      } else if (key == "fortran_order") {
        if (!boolean(header.fortran_order)) return "fortran_order is neither True nor False";
      } else if (auto error = tuple(header.shape)) {
        return error;
      }
      if (!take(',') && (skip_space(), rest().empty() || rest()[0] != '}')) {
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
  std::optional<std::string> tuple(Dims& shape) {
    if (!take('(')) return "shape is not a tuple";
    while (!take(')')) {
      skip_space();
      int64_t extent = 0;
      const char* begin = text_.data() + at_;
      const auto [stop, error] = std::from_chars(begin, text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0)
        return "shape holds something other than extents >= 0";
      if (shape.rank() == kMaxRank) return fmt::format("found a rank over {}", kMaxRank);
      at_ += static_cast<size_t>(stop - begin);
      shape.push_back(extent);
      if (!take(',') && (skip_space(), rest().empty() || rest()[0] != ')')) {
        return "shape's extents are not separated by commas";
      }
    }
    return std::nullopt;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// The type of a descr, and whether its bytes have to be swapped.
std::optional<std::pair<ArrayType, bool>> type_of(std::string_view descr) {
  if (descr.size() < 2 || std::string_view("<>|=").find(descr[0]) == std::string_view::npos) {
    return std::nullopt;
  }
  for (const TypeRow& row : kTypes) {
    if (descr.substr(1) == row.npy) return std::pair{row.type, descr[0] == '>' && row.size > 1};
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
    case ArrayType::kBool:
      return read(uint8_t{});
  }
  return 0;
}

Result<Array> read_npy(const std::string& path) {
  ME_ASSIGN_OR_RETURN(const std::string file, read_file(path, kMostFileBytes));
  const std::string_view content = file;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(content[i]); };
  if (!content.starts_with(kMagic) || content.size() < kMagic.size() + 2) {
    return at_file(path, "not a .npy file: it does not start with \\x93NUMPY and a version");
  }
  const int major = byte(6);
  if (major < 1 || major > 3 || byte(7) != 0) {
    return at_file(
        path, fmt::format("found .npy version {}.{}, expected 1.0, 2.0 or 3.0", major, byte(7)));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t header_at = kMagic.size() + 2 + length_bytes;
  if (content.size() < header_at) return at_file(path, "the file ends inside the header");
  size_t header_bytes = 0;
  for (size_t i = 0; i < length_bytes; ++i) {
    header_bytes |= static_cast<size_t>(byte(kMagic.size() + 2 + i)) << (8 * i);
  }
  if (header_bytes > kMostHeaderBytes) {
    return at_file(path, fmt::format("found a header of {} bytes, expected at most {}",
                                     header_bytes, kMostHeaderBytes));
  }
  if (content.size() - header_at < header_bytes) {
    return at_file(path, "the file ends inside the header");
  }
  Header header;
  HeaderParser parser(content.substr(header_at, header_bytes));
  if (const auto fault = parser.parse(header)) return at_file(path, *fault);
  const auto type = type_of(header.descr);
  if (!type) {
    return at_file(path,
                   fmt::format("found dtype {}, expected a float, a signed integer, uint8 or bool",
                               in_quotes(header.descr)));
  }
  const auto elements = checked_count(header.shape);
  const size_t data_bytes = content.size() - header_at - header_bytes;
  if (!elements || static_cast<size_t>(*elements * size_of(type->first)) != data_bytes) {
    return at_file(path, fmt::format("found {} bytes of data, expected those of {} {}", data_bytes,
                                     name_of(type->first), to_string(header.shape)));
  }
  Array array{type->first, header.shape, {}};
  const auto item = static_cast<size_t>(size_of(array.type));
  array.bytes.resize(data_bytes);
  if (data_bytes > 0) {
    std::memcpy(array.bytes.data(), content.data() + header_at + header_bytes, data_bytes);
  }
  if (type->second) swap_bytes(array.bytes, item);
  if (header.fortran_order) array.bytes = from_fortran(array.bytes, array.shape, item);
  return array;
}

Status write_npy(const std::string& path, const TensorView& tensor) {
  const bool half = tensor.dtype == DType::kF16;
  std::string shape = "(";
  for (int i = 0; i < tensor.shape.rank(); ++i) {
    shape += fmt::format("{}{}", i > 0 ? " " : "", tensor.shape[i]) + ",";
  }
  if (tensor.shape.rank() > 1) shape.pop_back();
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}), }}",
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

  const int64_t n = tensor.count();
  std::vector<std::byte> data(static_cast<size_t>(n * (half ? 2 : 4)));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t from = offset_of(tensor, i);
    if (half) {
      std::memcpy(data.data() + 2 * i, static_cast<const uint16_t*>(tensor.data) + from, 2);
    } else {
      const float value = load_f32(tensor.data, from, tensor.dtype);
      std::memcpy(data.data() + 4 * i, &value, 4);
    }
  }
  const std::span<const std::byte> parts[] = {std::as_bytes(std::span(start)), data};
  return write_file(path, parts);
}

}  // namespace me
