#include "ops/cuda/device.h"

#include "ops/cuda/error.h"

namespace me {

Result<std::vector<CudaDevice>> cuda_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    return Error{ErrorKind::kDevice,
                 "no NVIDIA driver, or one older than this build's CUDA runtime"};
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    return Error{ErrorKind::kDevice, "no CUDA device"};
  }
  if (status != cudaSuccess) {
    return Error{ErrorKind::kDevice,
                 std::string("cudaGetDeviceCount: ") + cudaGetErrorString(status)};
  }
  std::vector<CudaDevice> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    ME_CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    devices.push_back({i, properties.name, properties.major, properties.minor,
                       properties.multiProcessorCount,
                       static_cast<int64_t>(properties.totalGlobalMem), properties.l2CacheSize});
  }
  return devices;
}

}  // namespace me
