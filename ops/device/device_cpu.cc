// The CPU as a device: nothing is asynchronous, and its memory is the host's.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "ops/base/kernel.h"
#include "ops/device/backends.h"

namespace me {
namespace {

class CpuReplay final : public Replay {
 public:
  explicit CpuReplay(std::function<void(void*)> enqueue) : enqueue_(std::move(enqueue)) {}
  void launch() override { enqueue_(nullptr); }

 private:
  std::function<void(void*)> enqueue_;
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const DeviceInfo& info) : Device(info) {}

  void* stream() override { return nullptr; }
  bool host_memory() const override { return true; }
  void wait() override {}
  std::unique_ptr<Replay> capture(const std::function<void(void*)>& enqueue) override {
    return std::make_unique<CpuReplay>(enqueue);
  }
  double time_us(const std::function<void()>& enqueue) override {
    const auto start = std::chrono::steady_clock::now();
    enqueue();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }
  void upload(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, int64_t bytes) override { copy(to, from, bytes); }
  void fill(void* to, int byte, int64_t bytes) override {
    if (bytes > 0) std::memset(to, byte, static_cast<size_t>(bytes));
  }
  // All there is: a machine promises more than it has, and ends who takes it at its word.
  int64_t free_bytes() override { return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE); }

 private:
  static void copy(void* to, const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void* allocate(Kind, int64_t bytes) override {
    void* data = nullptr;
    if (bytes > free_bytes()) return nullptr;
    const int status = posix_memalign(&data, kWorkspaceAlignment, static_cast<size_t>(bytes));
    return status == 0 ? data : nullptr;
  }
  void release(Kind, void* data) override { std::free(data); }
};

}  // namespace

std::shared_ptr<Device> open_cpu(const DeviceInfo& info) {
  return std::make_shared<CpuDevice>(info);
}

}  // namespace me
