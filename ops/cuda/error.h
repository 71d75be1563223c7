// A failed CUDA call as an exception: what was called, where, and what CUDA says.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace me {

class CudaError : public std::runtime_error {
 public:
  CudaError(cudaError_t status, const char* call, const char* file, int line)
      : std::runtime_error(std::string(call) + " failed at " + file + ":" + std::to_string(line) +
                           ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status)),
        status_(status) {}

  cudaError_t status() const { return status_; }

 private:
  cudaError_t status_;
};

}  // namespace me

// Throws CudaError unless `call` succeeds.
#define ME_CUDA_CHECK(call)                                             \
  do {                                                                  \
    const cudaError_t me_cuda_status = (call);                          \
    if (me_cuda_status != cudaSuccess) {                                \
      throw ::me::CudaError(me_cuda_status, #call, __FILE__, __LINE__); \
    }                                                                   \
  } while (0)
