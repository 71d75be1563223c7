// The CUDA devices of this machine.
#pragma once

#include <vector>

#include "ops/base/op.h"
#include "ops/base/status.h"

namespace me {

// Chips below this compute capability (10·major + minor) are refused.
constexpr int kLeastComputeCapability = 80;

// Every device; kDevice where there is none, with the reason (no driver, a driver too old, no GPU).
Result<std::vector<DeviceInfo>> cuda_devices();

// Device `index`, made current for the calling thread. kDevice where there is none such or its chip
// is too old.
Result<DeviceInfo> use_cuda_device(int index);

}  // namespace me
