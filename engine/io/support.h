// What the readers and writers of this folder share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ops/base/status.h"
#include "ops/base/tensor.h"

namespace me {

// An open file descriptor, or -1, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// An error that names the file.
Error at_file(const std::string& path, std::string message, ErrorKind kind = ErrorKind::kInvalid);

struct InputFile {
  Descriptor descriptor;
  int64_t bytes = 0;       // when it was opened
  int64_t hard_links = 1;  // names it has in the file system
};

// Opens for reading without ever waiting (as a named pipe without a writer would), and refuses all
// but a regular file.
Result<InputFile> open_input(const std::string& path);

// The same checks for a descriptor that is open already; `path` is for the error only.
Result<InputFile> check_input(Descriptor descriptor, const std::string& path);

// Reads until `into` is full or the file ends; returns the bytes read.
Result<size_t> read_into(const InputFile& file, std::span<std::byte> into, const std::string& path);

// The elements of a tensor, dense, in its own type.
std::vector<std::byte> dense_bytes(const TensorView& tensor);

}  // namespace me
