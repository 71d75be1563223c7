#include "engine/io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/io/support.h"

namespace me {
namespace {

constexpr mode_t kNewFileMode = 0644;

Error write_failed(const std::string& path, const char* what) {
  return at_file(path, fmt::format("{}: {}", what, std::strerror(errno)), ErrorKind::kRuntime);
}

bool write_all(int fd, std::span<const std::span<const std::byte>> parts) {
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      const ssize_t n = ::write(fd, part.data(), part.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      part = part.subspan(static_cast<size_t>(n));
    }
  }
  return true;
}

// What cannot be replaced by another file: a terminal, /dev/null, a pipe.
Status write_directly(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  // Opening /dev/stdout afresh would start over at the beginning of a file behind it.
  const bool standard = path == "/dev/stdout" || path == "/dev/stderr";
  const int number = path == "/dev/stderr" ? STDERR_FILENO : STDOUT_FILENO;
  Descriptor file(standard ? ::fcntl(number, F_DUPFD_CLOEXEC, 0)
                           : ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.get() < 0) return write_failed(path, "cannot be written");
  // Non-blocking was for opening only: a pipe that nobody reads is an error, a slow reader is not.
  if (!standard && ::fcntl(file.get(), F_SETFL, 0) != 0) {
    return write_failed(path, "cannot be written");
  }
  if (!write_all(file.get(), parts)) return write_failed(path, "cannot be written");
  if (::close(file.release()) != 0) return write_failed(path, "cannot be written");
  return Ok{};
}

mode_t new_file_mode() {
  const mode_t mask = ::umask(0);  // the only way to ask
  ::umask(mask);
  return kNewFileMode & ~mask;
}

}  // namespace

Result<std::string> read_file(const std::string& path, int64_t max_bytes) {
  ME_ASSIGN_OR_RETURN(const InputFile file, open_input(path));
  if (file.bytes > max_bytes) {
    return at_file(path, fmt::format("found {} bytes, expected at most {}", file.bytes, max_bytes));
  }
  try {
    std::string content(static_cast<size_t>(file.bytes), '\0');
    ME_ASSIGN_OR_RETURN(const size_t n,
                        read_into(file, std::as_writable_bytes(std::span(content)), path));
    content.resize(n);
    return content;
  } catch (const std::bad_alloc&) {
    return at_file(path, fmt::format("found {} bytes, more than there is memory for", file.bytes),
                   ErrorKind::kRuntime);
  }
}

Status write_file(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  if (path.find('\0') != std::string::npos) {
    return at_file(path, "found a NUL byte in the path", ErrorKind::kRuntime);
  }
  if (path == "/dev/stdout" || path == "/dev/stderr") return write_directly(path, parts);
  struct stat link {};
  struct stat old {};
  const bool exists = ::lstat(path.c_str(), &link) == 0;
  std::string target = path;
  if (exists) {
    if (::stat(path.c_str(), &old) != 0) return write_failed(path, "cannot be followed");
    if (S_ISCHR(old.st_mode) || S_ISFIFO(old.st_mode)) return write_directly(path, parts);
    if (!S_ISREG(old.st_mode)) {
      return at_file(path, "exists and is not a regular file", ErrorKind::kRuntime);
    }
    if (S_ISLNK(link.st_mode)) {  // renaming over the link would replace it
      char resolved[PATH_MAX];
      if (::realpath(path.c_str(), resolved) == nullptr) {
        return write_failed(path, "cannot be followed");
      }
      target = resolved;
    }
  }

  std::string temporary = target + ".XXXXXX";
  Descriptor file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0) return write_failed(path, "cannot be written");
  const auto give_up = [&](const char* what) {
    Error error = write_failed(path, what);
    ::unlink(temporary.c_str());
    return error;
  };
  if (!write_all(file.get(), parts)) return give_up("cannot be written");
  const mode_t mode = exists ? old.st_mode & 07777 : new_file_mode();
  if (::fchmod(file.get(), mode) != 0) return give_up("cannot set the mode");
  if (::fsync(file.get()) != 0) return give_up("cannot be flushed");
  if (::close(file.release()) != 0) return give_up("cannot be closed");
  if (::rename(temporary.c_str(), target.c_str()) != 0) return give_up("cannot be replaced");
  return Ok{};
}

}  // namespace me
