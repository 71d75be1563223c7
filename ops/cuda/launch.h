// What every launch needs.
#pragma once

#include <cstdint>

#include "ops/cuda/error.h"

namespace me {

// PreparedOp::enqueue's stream.
inline cudaStream_t as_cuda_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

// Lets `kernel` be launched with up to `bytes` of dynamic shared memory. Once in prepare(), before
// any capture.
template <class Kernel>
void allow_shared_bytes(Kernel* kernel, int64_t bytes) {
  ME_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(bytes)));
}

// Loads the kernel's module now: a lazy load inside a capture would break it.
template <class Kernel>
void load_kernel(Kernel* kernel) {
  cudaFuncAttributes attributes;
  ME_CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
}

// The launch's own errors (a bad configuration); errors of the run itself come at the next wait.
inline void check_launch() { ME_CUDA_CHECK(cudaGetLastError()); }

}  // namespace me
