// What the driver says about a GPU's clocks, through NVML, which is opened only when wanted.
#pragma once

#include <optional>
#include <string>

namespace me {

struct GpuState {
  std::string driver;        // version
  unsigned sm_mhz = 0;       // now
  unsigned sm_mhz_most = 0;  // the chip's highest
  unsigned memory_mhz = 0;
  unsigned temperature_c = 0;
  double power_w = 0;
  std::string held_back;  // why the clocks are not at their highest: "power, heat"; or ""
};

// Of CUDA device `index`; nothing where there is no NVML or it does not answer.
std::optional<GpuState> gpu_state(int index);

}  // namespace me
