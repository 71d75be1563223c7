#include "engine/runtime/provenance.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <ctime>
#include <fstream>

#include "engine/runtime/commit.h"
#if ME_WITH_CUDA
#include <cuda_runtime_api.h>

#include "ops/cuda/nvml.h"
#endif

namespace me {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

std::map<std::string, std::string> provenance(const DeviceInfo& device) {
  std::map<std::string, std::string> p;
  p["commit"] = kCommit;
  p["compiler"] = __VERSION__;
  p["date"] = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  p["cpu"] = cpu_model();
  utsname system{};
  if (uname(&system) == 0) p["system"] = fmt::format("{} {}", system.sysname, system.release);
  p["device"] = to_string(device);
#if ME_WITH_CUDA
  if (device.backend == Backend::kCuda) {
    p["cuda_runtime"] = fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (const auto state = gpu_state(device.index)) {
      p["driver"] = state->driver;
      p["clocks"] =
          fmt::format("SM {} of {} MHz, memory {} MHz, {} C, {:.0f} W{}{}", state->sm_mhz,
                      state->sm_mhz_most, state->memory_mhz, state->temperature_c, state->power_w,
                      state->held_back.empty() ? "" : ", held back by ", state->held_back);
    }
  }
#endif
  return p;
}

std::string clock_warning([[maybe_unused]] const DeviceInfo& device) {
#if ME_WITH_CUDA
  if (device.backend == Backend::kCuda) {
    const auto state = gpu_state(device.index);
    if (state && !state->held_back.empty()) {
      return fmt::format("the GPU's clocks are held back ({}): SM {} of {} MHz", state->held_back,
                         state->sm_mhz, state->sm_mhz_most);
    }
  }
#endif
  return "";
}

}  // namespace me
