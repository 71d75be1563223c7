// The CUDA devices of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/base/status.h"

namespace me {

struct CudaDevice {
  int index = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
};

// Every device; kDevice where there is none, with the reason (no driver, a driver too old, no GPU).
Result<std::vector<CudaDevice>> cuda_devices();

}  // namespace me
