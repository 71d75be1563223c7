// Streams, events and graphs with owners. All are move-only; a destructor that fails says so and
// goes on.
#pragma once

#include <cstdio>
#include <utility>

#include "ops/cuda/error.h"

namespace me {

// Owns a CUDA handle that `Destroy` takes back.
template <class Handle, cudaError_t (*Destroy)(Handle)>
class CudaHandle {
 public:
  CudaHandle() = default;
  explicit CudaHandle(Handle handle) : handle_(handle) {}
  ~CudaHandle() {
    if (handle_ == nullptr) return;
    const cudaError_t status = Destroy(handle_);
    if (status != cudaSuccess) {
      std::fprintf(stderr, "releasing a CUDA handle: %s\n", cudaGetErrorString(status));
    }
  }
  CudaHandle(CudaHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaHandle& operator=(CudaHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  CudaHandle(const CudaHandle&) = delete;
  CudaHandle& operator=(const CudaHandle&) = delete;

  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

using Event = CudaHandle<cudaEvent_t, cudaEventDestroy>;
using CudaGraph = CudaHandle<cudaGraph_t, cudaGraphDestroy>;
using CudaGraphExec = CudaHandle<cudaGraphExec_t, cudaGraphExecDestroy>;

// An event that measures time.
inline Event make_event() {
  cudaEvent_t event = nullptr;
  ME_CUDA_CHECK(cudaEventCreate(&event));
  return Event(event);
}

// A stream that does not wait for the legacy default stream.
class Stream : public CudaHandle<cudaStream_t, cudaStreamDestroy> {
 public:
  Stream() : CudaHandle(create()) {}

 private:
  static cudaStream_t create() {
    cudaStream_t stream = nullptr;
    ME_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
};

// What `enqueue` puts on the stream, as a graph; nothing runs. Anything in it that a run may not do
// (allocate, wait, use the legacy stream) throws. The capture ends on every path.
template <class Enqueue>
CudaGraph record(cudaStream_t stream, const Enqueue& enqueue) {
  // Thread-local: what other threads do meanwhile is no concern of this capture.
  ME_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));
    static_cast<void>(CudaGraph(graph));
    static_cast<void>(cudaGetLastError());
    throw;
  }
  ME_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  return CudaGraph(graph);
}

inline CudaGraphExec instantiate(const CudaGraph& graph) {
  cudaGraphExec_t exec = nullptr;
  ME_CUDA_CHECK(cudaGraphInstantiate(&exec, graph.get(), 0));
  return CudaGraphExec(exec);
}

}  // namespace me
