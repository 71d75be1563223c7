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

namespace me {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = 8;
constexpr int kMostNesting = 3;  // the header, a tensor, its shape

struct TypeRow {
  ArrayType type;
  std::string_view name;
};
constexpr TypeRow kTypes[] = {
    {ArrayType::kF32, "F32"}, {ArrayType::kF16, "F16"}, {ArrayType::kBF16, "BF16"},
    {ArrayType::kF64, "F64"}, {ArrayType::kI64, "I64"}, {ArrayType::kI32, "I32"},
    {ArrayType::kI8, "I8"},   {ArrayType::kU8, "U8"},   {ArrayType::kBool, "BOOL"},
};

Error at_file(const std::string& path, std::string message) {
  Error error = invalid(std::move(message));
  error.file = path;
  return error;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Opens `path` below an open folder, following no symbolic link in any component.
Result<Descriptor> open_below(int folder_fd, const std::string& path) {
  Descriptor folder(::dup(folder_fd));
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

// Strict where a DOM parser is lenient: no duplicate keys, no deep nesting.
std::optional<Json> parse_header(std::string_view text, std::string& fault) {
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMostNesting) fault = "the header nests too deep";
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key &&
        !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      fault = "the header has a key twice: " + in_quotes(parsed.get_ref<const std::string&>());
    }
    return fault.empty();
  };
  Json header = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (fault.empty() && (header.is_discarded() || !header.is_object())) {
    fault = "the header is not a JSON object";
  }
  if (!fault.empty()) return std::nullopt;
  return header;
}

// An unsigned number that fits int64.
std::optional<int64_t> whole_number(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(number);
}

// Fills `tensor`'s type, shape and bytes (within `data`); returns a fault or "".
std::string read_tensor(const Json& entry, std::span<const std::byte> data,
                        SafetensorsFile::Tensor& tensor) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    return "expected an object with dtype, shape and data_offsets";
  }
  const Json& dtype = entry["dtype"];
  const Json& shape = entry["shape"];
  const Json& offsets = entry["data_offsets"];
  if (!dtype.is_string()) return "dtype is not a string";
  const auto row = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& r) {
    return r.name == dtype.get_ref<const std::string&>();
  });
  if (row == std::end(kTypes)) {
    return "found dtype " + in_quotes(dtype.get_ref<const std::string&>()) +
           ", expected F32, F16, BF16, F64, I64, I32, I8, U8 or BOOL";
  }
  tensor.type = row->type;
  if (!shape.is_array() || shape.size() > kMaxRank) {
    return fmt::format("shape is not an array of at most {} extents", kMaxRank);
  }
  for (const Json& extent : shape) {
    const auto number = whole_number(extent);
    if (!number) return "shape holds something other than extents >= 0";
    tensor.shape.push_back(*number);
  }
  if (!offsets.is_array() || offsets.size() != 2) return "data_offsets is not a pair";
  const auto begin = whole_number(offsets[0]);
  const auto end = whole_number(offsets[1]);
  if (!begin || !end || *begin > *end || static_cast<uint64_t>(*end) > data.size()) {
    return fmt::format("data_offsets lie outside the {} bytes of data", data.size());
  }
  const auto elements = checked_count(tensor.shape);
  if (!elements || *elements * size_of(tensor.type) != *end - *begin) {
    return fmt::format("found {} bytes, expected those of {} {}", *end - *begin,
                       name_of(tensor.type), to_string(tensor.shape));
  }
  tensor.bytes = data.subspan(static_cast<size_t>(*begin), static_cast<size_t>(*end - *begin));
  return "";
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
  Descriptor fd(-1);
  if (folder_fd >= 0) {
    ME_ASSIGN_OR_RETURN(fd, open_below(folder_fd, path));
  } else {
    fd = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) {
      return at_file(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
    }
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return at_file(path, "not a regular file");
  }
  if (folder_fd >= 0 && info.st_nlink > 1) {
    return at_file(path,
                   fmt::format("found a file with {} hard links, expected one", info.st_nlink));
  }
  const auto file_bytes = static_cast<size_t>(info.st_size);
  if (file_bytes < kLengthBytes) {
    return at_file(path,
                   fmt::format("found {} bytes, expected at least {}", file_bytes, kLengthBytes));
  }
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  void* mapping = ::mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, fd.get(), 0);
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
  std::string fault;
  const auto header = parse_header(text, fault);
  if (!header) return at_file(path, fault);

  const auto data = content.subspan(kLengthBytes + static_cast<size_t>(header_bytes));
  std::vector<std::pair<const std::byte*, size_t>> ranges;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    Tensor tensor;
    const std::string wrong = read_tensor(entry, data, tensor);
    if (!wrong.empty()) {
      return at_file(path, fmt::format("tensor {}: {}", in_quotes(name), wrong));
    }
    ranges.emplace_back(tensor.bytes.data(), tensor.bytes.size());
    file->tensors_.emplace(name, tensor);
  }
  // Neither overlaps nor holes: the ranges, in order, are the data.
  std::sort(ranges.begin(), ranges.end());
  const std::byte* next = data.data();
  for (const auto& [begin, bytes] : ranges) {
    if (begin != next) return at_file(path, "the tensors' bytes overlap or leave a hole");
    next = begin + bytes;
  }
  if (next != data.data() + data.size()) {
    return at_file(path, "the file has bytes behind its last tensor");
  }
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors) {
  Json header = Json::object();
  std::vector<std::vector<std::byte>> data;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const int64_t n = tensor.count();
    const auto item = static_cast<size_t>(size_of(tensor.dtype));
    std::vector<std::byte> bytes(static_cast<size_t>(n) * item);
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(bytes.data() + static_cast<size_t>(i) * item,
                  static_cast<const std::byte*>(tensor.data) +
                      static_cast<size_t>(offset_of(tensor, i)) * item,
                  item);
    }
    const auto end = offset + static_cast<int64_t>(bytes.size());
    const char* type = tensor.dtype == DType::kF32   ? "F32"
                       : tensor.dtype == DType::kF16 ? "F16"
                                                     : "BF16";
    header[name] = {{"dtype", type},
                    {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
                    {"data_offsets", {offset, end}}};
    offset = end;
    data.push_back(std::move(bytes));
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const uint64_t length = text.size();
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(&length, 1)),
                                                   std::as_bytes(std::span(text))};
  for (const auto& bytes : data) parts.emplace_back(bytes);
  return write_file(path, parts);
}

}  // namespace me
