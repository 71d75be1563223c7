// The .safetensors format: an 8-byte length, a JSON header, the tensors' bytes.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/npy.h"

namespace me {

// A file mapped read-only. The tensors' bytes live as long as this object.
class SafetensorsFile {
 public:
  struct Tensor {
    ArrayType type = ArrayType::kF32;
    Dims shape;
    std::span<const std::byte> bytes;
  };

  // The file is untrusted: header length, JSON, dtypes, shapes, and that the offsets lie inside the
  // file, do not overlap, leave no hole and fit the shapes, are all checked. `folder_fd` >= 0:
  // `path` is relative to that open folder, and a symbolic link in any of its components, a hard
  // link, and anything but a regular file are refused.
  static Result<std::shared_ptr<const SafetensorsFile>> open(const std::string& path,
                                                             int folder_fd = -1);

  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  // Null where there is none.
  const Tensor* find(std::string_view name) const;
  const std::map<std::string, Tensor, std::less<>>& tensors() const { return tensors_; }

 private:
  SafetensorsFile() = default;

  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

struct NamedTensor {
  std::string name;
  TensorView tensor;
};

// Writes the tensors dense, in this order. The file is whole or untouched.
Status write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors);

}  // namespace me
