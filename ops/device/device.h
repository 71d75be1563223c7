// Where a plan runs, whichever backend: memory, one stream of work, and captured work to replay.
// Sessions, comparisons, benchmarks and tests are written against this, so that they are the same
// for every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "ops/base/op.h"
#include "ops/base/status.h"

namespace me {

// The CUDA device `index`, ready for this thread. kDevice where it cannot be used, with the reason.
Result<DeviceInfo> find_cuda_device(int index);

// Work put on a device's stream once, to be started again and again with the same addresses.
class Replay {
 public:
  virtual ~Replay() = default;
  // Starts the work. Allocates nothing and does not wait for it (a CPU has finished it).
  virtual void launch() = 0;
};

// One device with a stream of its own. Work is enqueued on stream() and runs in order. Failures
// while running throw std::runtime_error (CudaError on CUDA). Not for several threads at once.
class Device {
 public:
  static std::shared_ptr<Device> open(const DeviceInfo& info);
  virtual ~Device() = default;

  const DeviceInfo& info() const { return info_; }
  // What PreparedOp::enqueue takes.
  virtual void* stream() = 0;
  // Whether the host reads and writes the device's memory directly.
  virtual bool host_memory() const = 0;
  // Until everything enqueued so far has finished.
  virtual void wait() = 0;
  // Records what `enqueue` puts on the stream, without running it.
  virtual std::unique_ptr<Replay> capture(const std::function<void(void* stream)>& enqueue) = 0;
  // Time that the device takes for what `enqueue` puts on the stream, waiting for it. Microseconds.
  virtual double time_us(const std::function<void()>& enqueue) = 0;
  // Enqueues a copy between host memory and this device's; from and to pinned host memory it does
  // not wait.
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  virtual void download(void* to, const void* from, int64_t bytes) = 0;
  // Enqueues filling memory with a byte.
  virtual void fill(void* to, int byte, int64_t bytes) = 0;
  // Bytes that an allocation could have at most, about now.
  virtual int64_t free_bytes() = 0;
  // What a message about too little memory ends with: where the host's memory is the larger one,
  // that the CPU runs everything too.
  std::string_view way_on() const {
    return host_memory() ? "" : "; --device cpu runs in the host's memory";
  }

 protected:
  enum class Kind : uint8_t { kDevice, kPinnedHost };
  explicit Device(const DeviceInfo& info) : info_(info) {}

 private:
  friend class Memory;
  // Null where there is not as much.
  virtual void* allocate(Kind kind, int64_t bytes) = 0;
  virtual void release(Kind kind, void* data) = 0;

  DeviceInfo info_;
};

// Memory with an owner, aligned to 256 bytes. Move-only. Keeps its device open.
class Memory {
 public:
  Memory() = default;
  // kDevice where there is not as much; the message says how much was asked for and is there.
  static Result<Memory> on_device(const std::shared_ptr<Device>& device, int64_t bytes);
  // Host memory that copies to and from the device at full speed.
  static Result<Memory> pinned(const std::shared_ptr<Device>& device, int64_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  static Result<Memory> allocate(const std::shared_ptr<Device>& device, Device::Kind kind,
                                 int64_t bytes);
  std::shared_ptr<Device> device_;
  Device::Kind kind_ = Device::Kind::kDevice;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace me
