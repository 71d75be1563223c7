// What a device can do at most, measured now: the copy of memory and the product of matrices.
#pragma once

#include <memory>
#include <optional>

#include "ops/device/device.h"

namespace me {

// Bytes per second that a copy moves (read and written), of tensors larger than the cache, by the
// device's own copy kernel.
Result<double> copy_ceiling(const std::shared_ptr<Device>& device);

// FLOP/s of a large product of random matrices by the fastest kernel that there is for it,
// baselines included. Nothing where there is none, or on a CPU, where it would take long.
std::optional<double> matrix_ceiling(const std::shared_ptr<Device>& device, DType dtype);

}  // namespace me
