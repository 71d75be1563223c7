#include "ops/device/device.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "ops/device/backends.h"
#if ME_WITH_CUDA
#include "ops/cuda/device.h"
#endif

namespace me {

Result<DeviceInfo> find_cuda_device(int index) {
#if ME_WITH_CUDA
  return use_cuda_device(index);
#else
  return Error{ErrorKind::kDevice,
               fmt::format("no cuda:{}: this program was built without the CUDA toolkit", index)};
#endif
}

std::shared_ptr<Device> Device::open(const DeviceInfo& info) {
  if (info.backend == Backend::kCpu) return open_cpu(info);
#if ME_WITH_CUDA
  return open_cuda(info);
#else
  throw std::runtime_error("this program was built without the CUDA toolkit");
#endif
}

Result<Memory> Memory::allocate(const std::shared_ptr<Device>& device, Device::Kind kind,
                                int64_t bytes) {
  Memory memory;
  memory.device_ = device;
  memory.kind_ = kind;
  memory.bytes_ = bytes;
  if (bytes == 0) return memory;
  memory.data_ = device->allocate(kind, bytes);
  if (memory.data_ == nullptr) {
    return Error{
        ErrorKind::kDevice,
        fmt::format("found {} bytes of free memory on {}, expected {}{}", device->free_bytes(),
                    name_of(device->info().backend), bytes, device->way_on())};
  }
  return memory;
}

Result<Memory> Memory::on_device(const std::shared_ptr<Device>& device, int64_t bytes) {
  return allocate(device, Device::Kind::kDevice, bytes);
}

Result<Memory> Memory::pinned(const std::shared_ptr<Device>& device, int64_t bytes) {
  return allocate(device, Device::Kind::kPinnedHost, bytes);
}

Memory::~Memory() {
  if (data_ != nullptr) device_->release(kind_, data_);
}

Memory::Memory(Memory&& other) noexcept
    : device_(std::move(other.device_)),
      kind_(other.kind_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(kind_, other.kind_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace me
