#include "ops/cuda/buffer.h"
#include "tests/ops/cuda/normalizer_on_device.h"

namespace me::testing {
namespace {

__global__ void merge_kernel(const Normalizer* a, const Normalizer* b, Normalizer* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = merge(a[i], b[i]);
}

}  // namespace

std::vector<Normalizer> merge_on_device(const std::vector<Normalizer>& a,
                                        const std::vector<Normalizer>& b) {
  constexpr int kThreads = 128;
  const int n = static_cast<int>(a.size());
  const size_t bytes = a.size() * sizeof(Normalizer);
  const DeviceBuffer left(static_cast<int64_t>(bytes));
  const DeviceBuffer right(static_cast<int64_t>(bytes));
  const DeviceBuffer out(static_cast<int64_t>(bytes));
  ME_CUDA_CHECK(cudaMemset(out.data(), 0xFF, bytes));
  ME_CUDA_CHECK(cudaMemcpy(left.data(), a.data(), bytes, cudaMemcpyHostToDevice));
  ME_CUDA_CHECK(cudaMemcpy(right.data(), b.data(), bytes, cudaMemcpyHostToDevice));
  merge_kernel<<<(n + kThreads - 1) / kThreads, kThreads>>>(
      static_cast<const Normalizer*>(left.data()), static_cast<const Normalizer*>(right.data()),
      static_cast<Normalizer*>(out.data()), n);
  ME_CUDA_CHECK(cudaGetLastError());
  std::vector<Normalizer> merged(a.size());
  ME_CUDA_CHECK(cudaMemcpy(merged.data(), out.data(), bytes, cudaMemcpyDeviceToHost));
  return merged;
}

}  // namespace me::testing
