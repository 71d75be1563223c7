// Device::open for each backend.
#pragma once

#include <memory>

#include "ops/device/device.h"

namespace me {

std::shared_ptr<Device> open_cpu(const DeviceInfo& info);
// Only in builds with CUDA. Throws CudaError.
std::shared_ptr<Device> open_cuda(const DeviceInfo& info);

}  // namespace me
