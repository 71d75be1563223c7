// Device memory with an owner.
#pragma once

#include <cstdint>
#include <cstdio>

#include "ops/cuda/error.h"

namespace me {

// `bytes` bytes on the current device, aligned to 256. Move-only.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t bytes) {
    ME_CUDA_CHECK(cudaMalloc(&data_, static_cast<size_t>(bytes)));
  }
  ~DeviceBuffer() {
    const cudaError_t status = cudaFree(data_);
    if (status != cudaSuccess) std::fprintf(stderr, "cudaFree: %s\n", cudaGetErrorString(status));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace me
