#include "ops/cuda/nvml.h"

#include <dlfcn.h>

#include <array>

#include "ops/cuda/error.h"

namespace me {
namespace {

// From NVML's documentation (the header is not in every toolkit): 0 is success, handles are opaque.
using Handle = void*;
constexpr int kSuccess = 0;
constexpr unsigned kClockSm = 1;
constexpr unsigned kClockMemory = 2;
constexpr unsigned kTemperatureGpu = 0;

// Bits of nvmlDeviceGetCurrentClocksThrottleReasons that mean a slower chip. (Idle is no such.)
struct Reason {
  unsigned long long bit;
  const char* name;
};
constexpr std::array kReasons{
    Reason{0x02, "application clocks"},        Reason{0x04, "software power cap"},
    Reason{0x08, "hardware slowdown"},         Reason{0x20, "software thermal slowdown"},
    Reason{0x40, "hardware thermal slowdown"}, Reason{0x80, "hardware power brake"},
};

class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    load("nvmlInit_v2", init_);
    load("nvmlSystemGetDriverVersion", driver_);
    load("nvmlDeviceGetHandleByPciBusId_v2", by_bus_);
    load("nvmlDeviceGetClockInfo", clock_);
    load("nvmlDeviceGetMaxClockInfo", most_);
    load("nvmlDeviceGetTemperature", temperature_);
    load("nvmlDeviceGetPowerUsage", power_);
    load("nvmlDeviceGetCurrentClocksThrottleReasons", reasons_);
    ready_ = complete_ && init_() == kSuccess;
  }

  std::optional<GpuState> state(int index) const {
    std::array<char, 32> bus{};
    Handle device = nullptr;
    if (!ready_ ||
        cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), index) != cudaSuccess ||
        by_bus_(bus.data(), &device) != kSuccess) {
      return std::nullopt;
    }
    // Each may be unsupported on some chip; what it would have told stays 0.
    GpuState state;
    std::array<char, 96> driver{};
    if (driver_(driver.data(), static_cast<unsigned>(driver.size())) == kSuccess) {
      state.driver = driver.data();
    }
    clock_(device, kClockSm, &state.sm_mhz);
    most_(device, kClockSm, &state.sm_mhz_most);
    clock_(device, kClockMemory, &state.memory_mhz);
    temperature_(device, kTemperatureGpu, &state.temperature_c);
    unsigned milliwatts = 0;
    power_(device, &milliwatts);
    state.power_w = milliwatts / 1e3;
    unsigned long long reasons = 0;
    reasons_(device, &reasons);
    for (const Reason& reason : kReasons) {
      if ((reasons & reason.bit) == 0) continue;
      state.held_back += (state.held_back.empty() ? "" : ", ") + std::string(reason.name);
    }
    return state;
  }

 private:
  template <class Function>
  void load(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    complete_ = complete_ && function != nullptr;
  }

  void* library_;  // never closed: the process ends with it
  bool complete_ = true;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*driver_)(char*, unsigned) = nullptr;
  int (*by_bus_)(const char*, Handle*) = nullptr;
  int (*clock_)(Handle, unsigned, unsigned*) = nullptr;
  int (*most_)(Handle, unsigned, unsigned*) = nullptr;
  int (*temperature_)(Handle, unsigned, unsigned*) = nullptr;
  int (*power_)(Handle, unsigned*) = nullptr;
  int (*reasons_)(Handle, unsigned long long*) = nullptr;
};

}  // namespace

std::optional<GpuState> gpu_state(int index) {
  static const Nvml nvml;
  return nvml.state(index);
}

}  // namespace me
