// What every launch needs.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "ops/cuda/error.h"

namespace me {

// PreparedOp::enqueue's stream.
inline cudaStream_t as_cuda_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

// Lets `kernel` be launched with up to `bytes` of dynamic shared memory, or with more where it was
// allowed more before: other problems are prepared with the same kernel. In prepare(), before any
// capture.
template <class Kernel>
void allow_shared_bytes(Kernel* kernel, int64_t bytes) {
  cudaFuncAttributes attributes;
  ME_CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  if (attributes.maxDynamicSharedSizeBytes >= bytes) return;
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

// A launch of the clusters and programmatic dependent launches of compute capability 9.0: the
// kernel may start while the one in front of it in the stream still runs, and must call
// wait_for_dependencies() before it touches anything that others write or read, and before it ends.
struct ClusterLaunch {
  dim3 blocks;
  unsigned threads = 1;
  unsigned shared_bytes = 0;
  unsigned cluster = 1;  // blocks, along x
};

template <class Params>
void launch_overlapping(void (*kernel)(Params), const ClusterLaunch& launch, cudaStream_t stream,
                        const Params& params) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {launch.cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = launch.blocks;
  config.blockDim = {launch.threads, 1, 1};
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = launch.cluster > 1 ? 2 : 1;
  ME_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace me
