#include "engine/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace me {
namespace {

constexpr mode_t kNewFileMode = 0644;

// An open file descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

Error at_file(const std::string& path, ErrorKind kind, std::string message) {
  Error error{kind, std::move(message)};
  error.file = path;
  return error;
}

Error write_failed(const std::string& path, const char* what) {
  return at_file(path, ErrorKind::kRuntime, fmt::format("{}: {}", what, std::strerror(errno)));
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

Result<std::string> read_file(const std::string& path, int64_t max_bytes) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    return at_file(path, ErrorKind::kInvalid,
                   fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return at_file(path, ErrorKind::kInvalid, "not a regular file");
  }
  if (info.st_size > max_bytes) {
    return at_file(path, ErrorKind::kInvalid,
                   fmt::format("found {} bytes, expected at most {}", info.st_size, max_bytes));
  }
  // Read until the end and not only st_size bytes: the file may change meanwhile.
  std::string content;
  content.reserve(static_cast<size_t>(info.st_size));
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(file.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return at_file(path, ErrorKind::kInvalid,
                     fmt::format("cannot be read: {}", std::strerror(errno)));
    }
    if (n == 0) return content;
    if (static_cast<int64_t>(content.size()) + n > max_bytes) {
      return at_file(path, ErrorKind::kInvalid,
                     fmt::format("found more than {} bytes, expected at most that", max_bytes));
    }
    content.append(buffer, static_cast<size_t>(n));
  }
}

Status write_file(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  struct stat old {};
  const bool exists = ::stat(path.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) {
    return at_file(path, ErrorKind::kRuntime, "exists and is not a regular file");
  }
  std::string temporary = path + ".XXXXXX";
  Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0) return write_failed(path, "cannot be written");
  const auto give_up = [&](const char* what) {
    Error error = write_failed(path, what);
    ::unlink(temporary.c_str());
    return error;
  };
  for (const auto& part : parts) {
    if (!write_all(file.get(), part)) return give_up("cannot be written");
  }
  mode_t mode = old.st_mode & 07777;
  if (!exists) {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    mode = kNewFileMode & ~mask;
  }
  if (::fchmod(file.get(), mode) != 0) return give_up("cannot set the mode");
  if (::fsync(file.get()) != 0) return give_up("cannot be flushed");
  if (::close(file.release()) != 0) return give_up("cannot be closed");
  if (::rename(temporary.c_str(), path.c_str()) != 0) return give_up("cannot be replaced");
  return Ok{};
}

}  // namespace me
