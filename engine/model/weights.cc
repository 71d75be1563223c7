#include "engine/model/weights.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "engine/model/attrs.h"
#include "ops/base/dtype.h"

namespace me {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and are mapped");

constexpr int64_t kMaxInlineElements = 65536;
constexpr std::string_view kFileEnding = ".safetensors";

std::optional<DType> dtype_of(ArrayType type) {
  switch (type) {
    case ArrayType::kF32:
      return DType::kF32;
    case ArrayType::kF16:
      return DType::kF16;
    case ArrayType::kBF16:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

// What is wrong with the path of an external file; empty where it is good.
std::string_view path_fault(std::string_view file) {
  if (file.empty()) return "the name of a file";
  if (file[0] == '/') return "a path relative to the model's folder";
  for (const char c : file) {
    if (c == '\\') return "'/' between components and no backslash";
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return "no control characters";
  }
  for (size_t begin = 0; begin <= file.size();) {
    const size_t end = std::min(file.find('/', begin), file.size());
    const std::string_view component = file.substr(begin, end - begin);
    if (component.empty() || component == "." || component == "..") {
      return "no empty component, no \".\" and no \"..\"";
    }
    begin = end + 1;
  }
  if (!file.ends_with(kFileEnding)) return "a name that ends in .safetensors";
  return {};
}

Status check_inline_limit(int64_t elements, const std::string& path) {
  if (elements <= kMaxInlineElements) return Ok{};
  return fault(path, fmt::format("found {} elements, expected at most {} inline (use external)",
                                 elements, kMaxInlineElements));
}

}  // namespace

void WeightStorage::close_folder() {
  if (folder_fd_ >= 0) ::close(folder_fd_);
  folder_fd_ = -1;
}

std::span<std::byte> WeightStorage::allocate(size_t bytes) {
  buffers_.push_back(std::make_unique<std::byte[]>(bytes));
  return {buffers_.back().get(), bytes};
}

Result<std::span<const std::byte>> WeightStorage::read(const microengine::Weight& weight,
                                                       const TensorType& type,
                                                       const std::string& path) {
  const int64_t elements = count(type.shape);
  const auto bytes = static_cast<size_t>(elements * size_of(type.dtype));
  switch (weight.data_case()) {
    case microengine::Weight::kNumbers: {
      const auto& values = weight.numbers().values();
      if (values.size() != elements) {
        return fault(path + ".numbers", fmt::format("found {} numbers, expected {} for {}",
                                                    values.size(), elements, to_string(type)));
      }
      ME_RETURN_IF_ERROR(check_inline_limit(elements, path + ".numbers"));
      const std::span<std::byte> data = allocate(bytes);
      for (int i = 0; i < values.size(); ++i) store_f64(data.data(), i, type.dtype, values[i]);
      return std::span<const std::byte>(data);
    }
    case microengine::Weight::kRaw: {
      const std::string& raw = weight.raw();
      if (raw.size() != bytes) {
        return fault(path + ".raw", fmt::format("found {} bytes, expected {} for {}", raw.size(),
                                                bytes, to_string(type)));
      }
      ME_RETURN_IF_ERROR(check_inline_limit(elements, path + ".raw"));
      const std::span<std::byte> data = allocate(bytes);
      if (bytes > 0) std::memcpy(data.data(), raw.data(), bytes);
      return std::span<const std::byte>(data);
    }
    case microengine::Weight::kExternal:
      return read_external(weight, type, path + ".external");
    default:
      return fault(path, "found no data, expected numbers, raw or external");
  }
}

Result<const SafetensorsFile*> WeightStorage::open(const std::string& file,
                                                   const std::string& path) {
  if (const auto it = files_.find(file); it != files_.end()) return it->second.get();
  if (folder_fd_ < 0) {
    const size_t slash = model_path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : model_path_.substr(0, slash + 1);
    folder_fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd_ < 0) {
      return fault(path, fmt::format("cannot open the model's folder {}: {}", in_quotes(folder),
                                     std::strerror(errno)));
    }
  }
  auto opened = SafetensorsFile::open(file, folder_fd_);
  if (!opened.ok()) {
    const Error& cause = opened.error();
    return fault(path, fmt::format("{}: {}{}", in_quotes(file),
                                   cause.field.empty() ? "" : cause.field + ": ", cause.message));
  }
  return files_.emplace(file, std::move(opened).value()).first->second.get();
}

Result<std::span<const std::byte>> WeightStorage::read_external(const microengine::Weight& weight,
                                                                const TensorType& type,
                                                                const std::string& path) {
  const std::string& file = weight.external().file();
  if (const std::string_view expected = path_fault(file); !expected.empty()) {
    return fault(path + ".file", fmt::format("found {}, expected {}", in_quotes(file), expected));
  }
  ME_ASSIGN_OR_RETURN(const SafetensorsFile* opened, open(file, path + ".file"));

  const bool named = !weight.external().tensor().empty();
  const std::string& name = named ? weight.external().tensor() : weight.name();
  const SafetensorsFile::Tensor* tensor = opened->find(name);
  if (tensor == nullptr) {
    return fault(path + ".tensor",
                 fmt::format("found no tensor {} in {}", in_quotes(name), in_quotes(file)));
  }
  if (dtype_of(tensor->type) != type.dtype || tensor->shape != type.shape) {
    return fault(path, fmt::format("found {}{} in {}, expected {}", name_of(tensor->type),
                                   to_string(tensor->shape), in_quotes(file), to_string(type)));
  }
  // The format does not promise alignment; kernels want that of the element.
  const auto address = reinterpret_cast<uintptr_t>(tensor->bytes.data());
  if (address % static_cast<uintptr_t>(size_of(type.dtype)) == 0) return tensor->bytes;
  const std::span<std::byte> copy = allocate(tensor->bytes.size());
  std::memcpy(copy.data(), tensor->bytes.data(), copy.size());
  return std::span<const std::byte>(copy);
}

}  // namespace me
