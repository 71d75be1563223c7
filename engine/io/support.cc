#include "engine/io/support.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace me {

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Error at_file(const std::string& path, std::string message, ErrorKind kind) {
  Error error{kind, std::move(message)};
  error.file = path;
  return error;
}

Result<InputFile> open_input(const std::string& path) {
  // C strings end at a NUL: what the system opened would not be what `path` says.
  if (path.find('\0') != std::string::npos) return at_file(path, "found a NUL byte in the path");
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (descriptor.get() < 0) {
    return at_file(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  return check_input(std::move(descriptor), path);
}

Result<InputFile> check_input(Descriptor descriptor, const std::string& path) {
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0) {
    return at_file(path, fmt::format("cannot be examined: {}", std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    const char* found = S_ISDIR(info.st_mode)    ? "a folder"
                        : S_ISFIFO(info.st_mode) ? "a pipe"
                        : S_ISSOCK(info.st_mode) ? "a socket"
                                                 : "a device";
    return at_file(path, fmt::format("found {}, expected a regular file", found));
  }
  return InputFile{std::move(descriptor), info.st_size, static_cast<int64_t>(info.st_nlink)};
}

Result<size_t> read_into(const InputFile& file, std::span<std::byte> into,
                         const std::string& path) {
  size_t done = 0;
  while (done < into.size()) {
    const ssize_t n = ::read(file.descriptor.get(), into.data() + done, into.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return at_file(path, fmt::format("cannot be read: {}", std::strerror(errno)));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

std::vector<std::byte> dense_bytes(const TensorView& tensor) {
  const auto item = static_cast<size_t>(size_of(tensor.dtype));
  const auto n = static_cast<size_t>(tensor.count());
  const auto* from = static_cast<const std::byte*>(tensor.data);
  std::vector<std::byte> to(n * item);
  if (to.empty()) return to;
  if (tensor.is_dense()) {
    std::memcpy(to.data(), from, to.size());
    return to;
  }
  for (size_t i = 0; i < n; ++i) {
    const auto offset = static_cast<size_t>(offset_of(tensor, static_cast<int64_t>(i)));
    std::memcpy(to.data() + i * item, from + offset * item, item);
  }
  return to;
}

}  // namespace me
