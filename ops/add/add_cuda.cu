// add_cuda: y = a + b, one rounding.
//
// Where all three are dense the tensor is one run of elements, and a thread adds 16 bytes of them
// at a time; a stride anywhere makes it element by element, each finding its own offsets. Blocks of
// 256 threads stride over the work, so that any size fits the grid.
#include <algorithm>

#include "ops/add/add.h"
#include "ops/base/kernel.h"
#include "ops/base/rows.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.h"

namespace me {
namespace {

constexpr int kThreads = 256;

// kWide elements to a thread; `count` is a multiple of it.
template <class T, int kWide>
__global__ void add_dense(const T* a, const T* b, T* y, int64_t count) {
  using Wide = Vector<T, kWide>;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count / kWide; i += step) {
    const Wide left = reinterpret_cast<const Wide*>(a)[i];
    const Wide right = reinterpret_cast<const Wide*>(b)[i];
    Wide sum;
#pragma unroll
    for (int j = 0; j < kWide; ++j)
      sum.at[j] = from_f32<T>(to_f32(left.at[j]) + to_f32(right.at[j]));
    reinterpret_cast<Wide*>(y)[i] = sum;
  }
}

template <class T>
__global__ void add_strided(const T* a, const T* b, T* y, Rows a_rows, Rows b_rows, Rows y_rows) {
  const int64_t count = y_rows.count * y_rows.length;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    const int64_t row = i / y_rows.length;
    const int64_t column = i % y_rows.length;
    const float left = to_f32(a[a_rows.offset(row) + column * a_rows.stride]);
    const float right = to_f32(b[b_rows.offset(row) + column * b_rows.stride]);
    y[y_rows.offset(row) + column * y_rows.stride] = from_f32<T>(left + right);
  }
}

// Blocks enough to fill the machine several times over, and no more than there is work for.
unsigned blocks_for(const DeviceInfo& device, int64_t items) {
  const int64_t wanted = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(
      std::clamp<int64_t>(wanted, 1, int64_t{32} * device.multiprocessors));
}

template <class T>
std::unique_ptr<PreparedOp> prepare_as(const Problem& p, const Buffers& buffers) {
  const auto* a = static_cast<const T*>(buffers.inputs[0]);
  const auto* b = static_cast<const T*>(buffers.inputs[1]);
  auto* y = static_cast<T*>(buffers.outputs[0]);
  const int64_t count = p.outputs[0].count();
  if (count == 0) {
    return make_prepared([](void*) {});
  }
  const bool dense = p.inputs[0].is_dense() && p.inputs[1].is_dense() && p.outputs[0].is_dense();
  if (!dense) {
    load_kernel(add_strided<T>);
    return make_prepared([=, ra = rows_of(p.inputs[0]), rb = rows_of(p.inputs[1]),
                          ry = rows_of(p.outputs[0]),
                          blocks = blocks_for(p.device, count)](void* stream) {
      add_strided<T><<<blocks, kThreads, 0, as_cuda_stream(stream)>>>(a, b, y, ra, rb, ry);
      check_launch();
    });
  }
  constexpr int kWide = 16 / static_cast<int>(sizeof(T));
  const int64_t alignment = std::min(
      {p.inputs[0].alignment_bytes, p.inputs[1].alignment_bytes, p.outputs[0].alignment_bytes});
  const bool wide = count % kWide == 0 && alignment >= 16;
  auto* const kernel = wide ? add_dense<T, kWide> : add_dense<T, 1>;
  load_kernel(kernel);
  return make_prepared(
      [=, blocks = blocks_for(p.device, wide ? count / kWide : count)](void* stream) {
        kernel<<<blocks, kThreads, 0, as_cuda_stream(stream)>>>(a, b, y, count);
        check_launch();
      });
}

Support supports(const Problem& p) {
  return Support::yes(p.op->work(p).bytes / 3e6, "the GPU's only kernel for add");
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  return with_dtype(p.outputs[0].dtype,
                    [&](auto dtype) { return prepare_as<CudaElement<dtype()>>(p, buffers); });
}

}  // namespace

extern const KernelEntry add_cuda;
const KernelEntry add_cuda = {
    .op = "add",
    .name = "add_cuda",
    .backend = Backend::kCuda,
    .supports = supports,
    .prepare = prepare,
};

}  // namespace me
