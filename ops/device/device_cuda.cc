// A CUDA device: a stream of its own, captured graphs, event timing.
#include <array>
#include <cstdio>
#include <exception>

#include "ops/cuda/stream.h"
#include "ops/device/backends.h"

namespace me {
namespace {

class CudaReplay final : public Replay {
 public:
  CudaReplay(CudaGraphExec exec, cudaStream_t stream) : exec_(std::move(exec)), stream_(stream) {}
  void launch() override { ME_CUDA_CHECK(cudaGraphLaunch(exec_.get(), stream_)); }

 private:
  CudaGraphExec exec_;
  cudaStream_t stream_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceInfo& info) : Device(info) {}

  void* stream() override { return stream_.get(); }
  bool host_memory() const override { return false; }
  void wait() override { ME_CUDA_CHECK(cudaStreamSynchronize(stream_.get())); }

  std::unique_ptr<Replay> capture(const std::function<void(void*)>& enqueue) override {
    const CudaGraph graph = record(stream_.get(), [&] { enqueue(stream_.get()); });
    CudaGraphExec exec = instantiate(graph);
    ME_CUDA_CHECK(cudaGraphUpload(exec.get(), stream_.get()));
    return std::make_unique<CudaReplay>(std::move(exec), stream_.get());
  }

  double time_us(const std::function<void()>& enqueue) override {
    ME_CUDA_CHECK(cudaEventRecord(begin_.get(), stream_.get()));
    enqueue();
    ME_CUDA_CHECK(cudaEventRecord(end_.get(), stream_.get()));
    ME_CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    ME_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return 1e3 * static_cast<double>(milliseconds);
  }

  void upload(void* to, const void* from, int64_t bytes) override {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  void download(void* to, const void* from, int64_t bytes) override {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  void fill(void* to, int byte, int64_t bytes) override {
    if (bytes == 0) return;
    ME_CUDA_CHECK(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), stream_.get()));
  }

  int64_t free_bytes() override {
    size_t free = 0;
    size_t total = 0;
    ME_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return static_cast<int64_t>(free);
  }

 private:
  void copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    ME_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_.get()));
  }

  void* allocate(Kind kind, int64_t bytes) override {
    void* data = nullptr;
    const auto size = static_cast<size_t>(bytes);
    const cudaError_t status =
        kind == Kind::kDevice ? cudaMalloc(&data, size) : cudaMallocHost(&data, size);
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());  // or the next check of a launch would find it
      return nullptr;
    }
    if (status != cudaSuccess) throw CudaError(status, "cudaMalloc", __FILE__, __LINE__);
    return data;
  }
  void release(Kind kind, void* data) override {
    const cudaError_t status = kind == Kind::kDevice ? cudaFree(data) : cudaFreeHost(data);
    if (status != cudaSuccess) {
      std::fprintf(stderr, "releasing CUDA memory: %s\n", cudaGetErrorString(status));
    }
  }

  Stream stream_;
  Event begin_ = make_event();
  Event end_ = make_event();
};

}  // namespace

std::shared_ptr<Device> open_cuda(const DeviceInfo& info) {
  ME_CUDA_CHECK(cudaSetDevice(info.index));
  return std::make_shared<CudaDevice>(info);
}

}  // namespace me
