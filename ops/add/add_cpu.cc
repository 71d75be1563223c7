// add_cpu: each thread takes a run of rows; a row goes through fp32 in chunks that stay in L1.
#include <algorithm>

#include "ops/add/add.h"
#include "ops/base/kernel.h"
#include "ops/base/rows.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"

namespace me {
namespace {

constexpr int64_t kChunk = 512;  // elements; two fp32 buffers of it are 4 KiB of stack

void add_row(const TensorDesc& a_desc, const void* a, int64_t a_stride, const TensorDesc& b_desc,
             const void* b, int64_t b_stride, int64_t n, void* y, int64_t y_stride) {
  float left[kChunk];
  float right[kChunk];
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t m = std::min(kChunk, n - begin);
    widen(element(a, a_desc.dtype, begin * a_stride), a_desc.dtype, a_stride, m, left);
    widen(element(b, b_desc.dtype, begin * b_stride), b_desc.dtype, b_stride, m, right);
    for (int64_t i = 0; i < m; ++i) left[i] += right[i];
    narrow(left, m, element(y, a_desc.dtype, begin * y_stride), a_desc.dtype, y_stride);
  }
}

Support supports(const Problem& p) {
  return Support::yes(p.op->work(p).bytes / 1e4, "the CPU's only kernel for add");
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  const TensorView a = view_of(p.inputs[0], buffers.inputs[0]);
  const TensorView b = view_of(p.inputs[1], buffers.inputs[1]);
  const TensorView y = view_of(p.outputs[0], buffers.outputs[0]);
  const int threads = p.device.threads;
  return make_prepared([=, ra = rows_of(a), rb = rows_of(b), ry = rows_of(y)](void*) {
    parallel_for(threads, ry.count, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        add_row(a, element(a.data, a.dtype, ra.offset(row)), ra.stride, b,
                element(b.data, b.dtype, rb.offset(row)), rb.stride, ry.length,
                element(y.data, y.dtype, ry.offset(row)), ry.stride);
      }
    });
  });
}

}  // namespace

extern const KernelEntry add_cpu;
const KernelEntry add_cpu = {
    .op = "add",
    .name = "add_cpu",
    .backend = Backend::kCpu,
    .supports = supports,
    .prepare = prepare,
};

}  // namespace me
