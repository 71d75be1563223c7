#include "engine/io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/io/file.h"
#include "engine/io/support.h"

namespace me {
namespace {

using Json = nlohmann::json;
using Tensors = std::map<std::string, SafetensorsFile::Tensor, std::less<>>;

constexpr uint64_t kMostHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = 8;
constexpr size_t kMostMetadata = 100'000;
constexpr std::string_view kMetadataKey = "__metadata__";

struct TypeRow {
  ArrayType type;
  std::string_view name;
};
constexpr TypeRow kTypes[] = {
    {ArrayType::kF32, "F32"}, {ArrayType::kF16, "F16"}, {ArrayType::kBF16, "BF16"},
    {ArrayType::kF64, "F64"}, {ArrayType::kI64, "I64"}, {ArrayType::kI32, "I32"},
    {ArrayType::kI8, "I8"},   {ArrayType::kU8, "U8"},   {ArrayType::kBool, "BOOL"},
};

// Opens `path` below an open folder, following no symbolic link in any component.
Result<Descriptor> open_below(int folder_fd, const std::string& path) {
  if (path.find('\0') != std::string::npos) return at_file(path, "found a NUL byte in the path");
  Descriptor folder(::fcntl(folder_fd, F_DUPFD_CLOEXEC, 0));
  size_t begin = 0;
  for (;;) {
    const size_t slash = path.find('/', begin);
    const bool last = slash == std::string::npos;
    const std::string component = path.substr(begin, last ? slash : slash - begin);
    if (component.empty() || component == "." || component == "..") {
      return at_file(path, "expected a relative path without \"\", \".\" or \"..\"");
    }
    const int kind = last ? O_NONBLOCK : O_DIRECTORY;
    Descriptor next(
        ::openat(folder.get(), component.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | kind));
    if (next.get() < 0) {
      struct stat info {};
      const bool link =
          ::fstatat(folder.get(), component.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
          S_ISLNK(info.st_mode);
      return at_file(path, link ? "found a symbolic link, expected a regular file in the folder"
                                : fmt::format("cannot be opened: {}", std::strerror(errno)));
    }
    if (last) return next;
    folder = std::move(next);
    begin = slash + 1;
  }
}

// Reads the header without building a document: it stops at the first fault, however large or deep
// what follows is, and sees the key that occurs twice, which a document would have merged.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(std::span<const std::byte> data, Tensors& tensors)
      : data_(data), tensors_(tensors) {}

  const std::string& fault() const { return fault_; }

  bool start_object(std::size_t) override {
    if (place_ == Place::kOutside) return go(Place::kHeader);
    if (place_ != Place::kHeader) return wrong_value();
    if (key_ == kMetadataKey) return go(Place::kMetadata);
    tensor_ = {};
    begin_end_.clear();
    seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    return go(Place::kTensor);
  }

  bool key(string_t& text) override {
    if (place_ == Place::kHeader) {
      const bool twice =
          text == kMetadataKey ? std::exchange(seen_metadata_, true) : tensors_.contains(text);
      if (twice) return fail("found the key " + in_quotes(text) + " twice");
      key_ = text;
      return true;
    }
    if (place_ == Place::kMetadata) {
      if (metadata_keys_.size() == kMostMetadata) {
        return fail(fmt::format("found over {} keys of metadata", kMostMetadata));
      }
      if (!metadata_keys_.insert(text).second) {
        return fail("found the metadata key " + in_quotes(text) + " twice");
      }
      return true;
    }
    bool* seen = text == "dtype"          ? &seen_dtype_
                 : text == "shape"        ? &seen_shape_
                 : text == "data_offsets" ? &seen_offsets_
                                          : nullptr;
    if (seen == nullptr) {
      return fail_tensor("found the key " + in_quotes(text) +
                         ", expected dtype, shape and data_offsets");
    }
    if (std::exchange(*seen, true)) return fail_tensor("found the key " + text + " twice");
    field_ = text;
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != "dtype") return wrong_value();
    for (const TypeRow& row : kTypes) {
      if (row.name != text) continue;
      tensor_.type = row.type;
      return true;
    }
    return fail_tensor("found dtype " + in_quotes(text) +
                       ", expected F32, F16, BF16, F64, I64, I32, I8, U8 or BOOL");
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor) return wrong_value();
    if (field_ == "shape") return go(Place::kShape);
    return field_ == "data_offsets" ? go(Place::kOffsets) : wrong_value();
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return wrong_value();
    if (value > static_cast<uint64_t>(INT64_MAX)) return wrong_value();
    if (place_ == Place::kOffsets) {
      if (begin_end_.size() == 2) return fail_tensor("data_offsets is not a pair");
      begin_end_.push_back(value);
      return true;
    }
    if (tensor_.shape.rank() == kMaxRank) {
      return fail_tensor(fmt::format("found a rank over {}", kMaxRank));
    }
    tensor_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool end_array() override { return go(Place::kTensor); }

  bool end_object() override {
    if (place_ == Place::kTensor && !end_tensor()) return false;
    return go(place_ == Place::kHeader ? Place::kOutside : Place::kHeader);
  }

  bool null() override { return wrong_value(); }
  bool boolean(bool) override { return wrong_value(); }
  bool number_integer(number_integer_t) override { return wrong_value(); }
  bool number_float(number_float_t, const string_t&) override { return wrong_value(); }
  bool binary(binary_t&) override { return wrong_value(); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail(fmt::format("the header is not JSON: a fault at its byte {}", position));
  }

 private:
  enum class Place { kOutside, kHeader, kMetadata, kTensor, kShape, kOffsets };

  bool go(Place place) {
    place_ = place;
    return true;
  }
  bool fail(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }
  bool fail_tensor(const std::string& fault) {
    return fail("tensor " + in_quotes(key_) + ": " + fault);
  }
  bool wrong_value() {
    switch (place_) {
      case Place::kOutside:
        return fail("the header is not a JSON object");
      case Place::kHeader:
        return key_ == kMetadataKey
                   ? fail("__metadata__ is not an object")
                   : fail_tensor("expected an object with dtype, shape and data_offsets");
      case Place::kMetadata:
        return fail("__metadata__ holds something other than strings");
      case Place::kTensor:
        return fail_tensor(field_ == "dtype" ? "dtype is not a string" : field_ + " is no array");
      case Place::kShape:
        return fail_tensor("shape holds something other than extents from 0 to 2^63-1");
      case Place::kOffsets:
        break;
    }
    return fail_tensor("data_offsets holds something other than numbers from 0 to 2^63-1");
  }

  bool end_tensor() {
    if (!seen_dtype_ || !seen_shape_ || !seen_offsets_) {
      return fail_tensor("expected dtype, shape and data_offsets");
    }
    if (begin_end_.size() != 2) return fail_tensor("data_offsets is not a pair");
    const uint64_t begin = begin_end_[0];
    const uint64_t end = begin_end_[1];
    if (begin > end || end > data_.size()) {
      return fail_tensor(
          fmt::format("found data_offsets [{}, {}], expected them in order and "
                      "inside the {} bytes of data",
                      begin, end, data_.size()));
    }
    const auto elements = checked_count(tensor_.shape);
    if (!elements || static_cast<uint64_t>(*elements * size_of(tensor_.type)) != end - begin) {
      return fail_tensor(fmt::format("found {} bytes, expected those of {}{}", end - begin,
                                     name_of(tensor_.type), to_string(tensor_.shape)));
    }
    tensor_.bytes = data_.subspan(begin, end - begin);
    tensors_.emplace(key_, tensor_);
    return true;
  }

  std::span<const std::byte> data_;
  Tensors& tensors_;
  std::string fault_;
  Place place_ = Place::kOutside;
  std::string key_;    // in the header
  std::string field_;  // in a tensor
  SafetensorsFile::Tensor tensor_;
  std::vector<uint64_t> begin_end_;
  bool seen_dtype_ = false;
  bool seen_shape_ = false;
  bool seen_offsets_ = false;
  bool seen_metadata_ = false;
  std::set<std::string> metadata_keys_;
};

// Fills `tensors`; returns what is wrong with the header, or "".
std::string read_header(std::string_view text, std::span<const std::byte> data, Tensors& tensors) {
  if (!text.starts_with('{')) return "the header does not start with {";
  // The parser takes a NUL for the end and would ignore what stands behind it.
  if (text.find('\0') != std::string_view::npos) return "the header has a NUL byte";
  HeaderReader reader(data, tensors);
  const bool good = Json::sax_parse(text.begin(), text.end(), &reader);
  return good ? std::string() : reader.fault();
}

// Neither overlaps nor holes: the ranges, in order, are the data.
std::string check_ranges(const Tensors& tensors, std::span<const std::byte> data) {
  std::vector<std::span<const std::byte>> ranges;
  ranges.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) ranges.push_back(tensor.bytes);
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
    return a.data() != b.data() ? a.data() < b.data() : a.size() < b.size();
  });
  const std::byte* next = data.data();
  for (const auto& range : ranges) {
    if (range.data() < next) return "the bytes of two tensors overlap";
    if (range.data() > next) return "there is a hole between the bytes of two tensors";
    next = range.data() + range.size();
  }
  return next == data.data() + data.size() ? "" : "the file has bytes behind its last tensor";
}

}  // namespace

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
}

const SafetensorsFile::Tensor* SafetensorsFile::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(const std::string& path,
                                                                     int folder_fd) {
  InputFile input;
  if (folder_fd >= 0) {
    ME_ASSIGN_OR_RETURN(Descriptor descriptor, open_below(folder_fd, path));
    ME_ASSIGN_OR_RETURN(input, check_input(std::move(descriptor), path));
    if (input.hard_links > 1) {
      return at_file(
          path, fmt::format("found a file with {} hard links, expected one", input.hard_links));
    }
  } else {
    ME_ASSIGN_OR_RETURN(input, open_input(path));
  }
  const auto file_bytes = static_cast<size_t>(input.bytes);
  if (file_bytes < kLengthBytes) {
    return at_file(path,
                   fmt::format("found {} bytes, expected at least {}", file_bytes, kLengthBytes));
  }
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  void* mapping = ::mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, input.descriptor.get(), 0);
  if (mapping == MAP_FAILED) {
    return at_file(path, fmt::format("cannot be mapped: {}", std::strerror(errno)));
  }
  file->mapping_ = mapping;
  file->mapped_bytes_ = file_bytes;

  const std::span<const std::byte> content(static_cast<const std::byte*>(mapping), file_bytes);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, content.data(), kLengthBytes);
  if (header_bytes > kMostHeaderBytes || header_bytes > file_bytes - kLengthBytes) {
    return at_file(path,
                   fmt::format("found a header of {} bytes in a file of {}, expected it inside "
                               "the file and at most {}",
                               header_bytes, file_bytes, kMostHeaderBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(content.data()) + kLengthBytes,
                              static_cast<size_t>(header_bytes));
  const auto data = content.subspan(kLengthBytes + static_cast<size_t>(header_bytes));
  std::string fault = read_header(text, data, file->tensors_);
  if (fault.empty()) fault = check_ranges(file->tensors_, data);
  if (!fault.empty()) return at_file(path, fault);
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  std::string text = "{";
  std::vector<std::vector<std::byte>> data;
  std::set<std::string_view> names;
  size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadataKey || !is_utf8(name) || !names.insert(name).second) {
      return at_file(path, "found a tensor named " + in_quotes(name) +
                               ", expected names in UTF-8, each once, and not __metadata__");
    }
    data.push_back(dense_bytes(tensor));
    const char* type = tensor.dtype == DType::kF32   ? "F32"
                       : tensor.dtype == DType::kF16 ? "F16"
                                                     : "BF16";
    const size_t end = offset + data.back().size();
    text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                        data.size() > 1 ? "," : "", Json(name).dump(), type,
                        Json(std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())).dump(),
                        offset, end);
    offset = end;
  }
  text += '}';
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const uint64_t length = text.size();
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(&length, 1)),
                                                   std::as_bytes(std::span(text))};
  for (const auto& bytes : data) parts.emplace_back(bytes);
  return write_file(path, parts);
}

}  // namespace me
