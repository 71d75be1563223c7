#include "ops/cuda/device.h"

#include <fmt/format.h>

#include "ops/cuda/error.h"

namespace me {
namespace {

Error no_device(std::string why) { return {ErrorKind::kDevice, std::move(why)}; }

std::string version(int cuda) { return fmt::format("{}.{}", cuda / 1000, cuda % 1000 / 10); }

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  ME_CUDA_CHECK(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

}  // namespace

Result<std::vector<DeviceInfo>> cuda_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
      return no_device("no NVIDIA driver on this machine");
    }
    return no_device(fmt::format("the NVIDIA driver knows CUDA {}, this program needs {}",
                                 version(driver), version(CUDART_VERSION)));
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    return no_device("no CUDA device on this machine");
  }
  if (status != cudaSuccess) {
    return no_device(fmt::format("cudaGetDeviceCount: {}", cudaGetErrorString(status)));
  }
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    ME_CUDA_CHECK(cudaGetDeviceProperties(&properties, i));
    DeviceInfo info;
    info.backend = Backend::kCuda;
    info.name = properties.name;
    info.index = i;
    info.compute_capability = 10 * properties.major + properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
    info.l2_bytes = properties.l2CacheSize;
    info.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, i);
    devices.push_back(std::move(info));
  }
  return devices;
}

Result<DeviceInfo> use_cuda_device(int index) {
  ME_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices, cuda_devices());
  const int count = static_cast<int>(devices.size());
  if (index < 0 || index >= count) {
    return no_device(fmt::format(
        "found device cuda:{}, expected one of the {} that this machine has", index, count));
  }
  const DeviceInfo& device = devices[static_cast<size_t>(index)];
  if (device.compute_capability < kLeastComputeCapability) {
    return no_device(
        fmt::format("cuda:{} is a {} of compute capability {}.{}, expected 8.0 or more", index,
                    device.name, device.compute_capability / 10, device.compute_capability % 10));
  }
  const cudaError_t status = cudaSetDevice(index);
  if (status != cudaSuccess) {
    return no_device(fmt::format("cuda:{} cannot be used: {}", index, cudaGetErrorString(status)));
  }
  return device;
}

}  // namespace me
