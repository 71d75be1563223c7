// The bytes of a model's weights.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "engine/model/graph.h"
#include "proto/model.pb.h"

namespace me {

// Keeps mapped files and copied bytes alive. A file is opened once, however many weights lie in it.
class WeightStorage {
 public:
  // `model_path`: external files lie beside this one.
  explicit WeightStorage(std::string model_path) : model_path_(std::move(model_path)) {}
  ~WeightStorage() { close_folder(); }
  WeightStorage(const WeightStorage&) = delete;
  WeightStorage& operator=(const WeightStorage&) = delete;

  // The elements of `weight`, which has the type `type` and the path `path` in the model. They lie
  // aligned to the element and live as long as this object.
  Result<std::span<const std::byte>> read(const microengine::Weight& weight, const TensorType& type,
                                          const std::string& path);

  // Call when the last weight is read.
  void close_folder();

 private:
  std::span<std::byte> allocate(size_t bytes);
  Result<const SafetensorsFile*> open(const std::string& file, const std::string& path);
  Result<std::span<const std::byte>> read_external(const microengine::Weight& weight,
                                                   const TensorType& type, const std::string& path);

  std::string model_path_;
  int folder_fd_ = -1;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>, std::less<>> files_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
};

}  // namespace me
