// softmax_grad_cpu_rows: dx[M, N] = y ∘ (g - Σ y·g), each thread a run of rows.
//
// Per row: dot = Σ y·g, one fp32 reduction in four vectors of running sums; then y·(g - dot). The
// Jacobian diag(y) - y·yᵀ is never formed. Dense fp32 rows are read where they lie; others, and
// rows with a column stride a cache line of them at a time (ops/cpu/panel.h), come through the
// thread's buffers by chunks. A row longer than its buffer is fetched twice.
//
// Numerics: fp32 throughout, one rounding at the store. The order of a row's sum depends on the
// shapes, strides and type alone, never on the other rows or the threads.
#include <fmt/format.h>

#include <algorithm>

#include "ops/base/kernel.h"
#include "ops/cpu/panel.h"
#include "ops/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/softmax_grad/softmax_grad_cpu_rows.cc"
#include "hwy/foreach_target.h"
// foreach_target.h comes first
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace me {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr D d;

float dot(const float* y, const float* g, size_t n) {
  const size_t lanes = hn::Lanes(d);
  const auto product = [&](size_t at, V sum) HWY_ATTR {
    return hn::MulAdd(hn::LoadU(d, y + at), hn::LoadU(d, g + at), sum);
  };
  // Four running sums hide the latency of one.
  V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = product(i, s0);
    s1 = product(i + lanes, s1);
    s2 = product(i + 2 * lanes, s2);
    s3 = product(i + 3 * lanes, s3);
  }
  for (; i + lanes <= n; i += lanes) s0 = product(i, s0);
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < n; ++i) sum += y[i] * g[i];
  return sum;
}

// `dx` may be `y` or `g`.
void combine(const float* y, const float* g, size_t n, float sum, float* dx) {
  const size_t lanes = hn::Lanes(d);
  const V s = hn::Set(d, sum);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + i), hn::Sub(hn::LoadU(d, g + i), s)), d, dx + i);
  }
  for (; i < n; ++i) dx[i] = y[i] * (g[i] - sum);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace me
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace me {
namespace {

HWY_EXPORT(dot);
HWY_EXPORT(combine);

constexpr int64_t kBuffer = 16384;  // fp32 of y and of g; together 128 KiB of each thread's stack

struct Buffer {
  alignas(64) float y[kBuffer + kMostPanelRows * panel_pitch(0)];
  alignas(64) float g[kBuffer + kMostPanelRows * panel_pitch(0)];
};

// One operand: a tensor, its rows, and whether they can be used where they lie.
struct Operand {
  explicit Operand(const TensorView& view) : tensor(view), rows(rows_of(view)) {}
  bool dense() const { return tensor.dtype == DType::kF32 && rows.stride == 1; }
  float* at(int64_t row, int64_t begin) const {
    return static_cast<float*>(tensor.data) + rows.offset(row) + begin;
  }
  TensorView tensor;
  Rows rows;
};

struct SoftmaxGrad {
  Operand y;
  Operand g;
  Operand dx;
  int64_t panel;    // rows fetched together
  int64_t columns;  // of a buffered row

  SoftmaxGrad(const TensorView& y_view, const TensorView& g_view, const TensorView& dx_view)
      : y(y_view), g(g_view), dx(dx_view) {
    const bool column_stride = dx.rows.length > 1 && (y.rows.stride != 1 || g.rows.stride != 1);
    panel = column_stride ? panel_rows(dx.tensor.dtype) : 1;
    columns = y.dense() && g.dense() && dx.dense() ? dx.rows.length : kBuffer / panel;
  }

  // Brings columns [begin, begin + n) of `count` rows into `buffer`, unless they are dense.
  void fetch(const Operand& from, int64_t row, int64_t count, int64_t begin, int64_t n,
             float* buffer) const {
    if (from.dense()) return;
    load_panel(from.tensor, from.rows, row, count, begin, n, buffer, panel_pitch(columns));
  }
  const float* fetched(const Operand& from, int64_t row, int64_t r, int64_t begin,
                       const float* buffer) const {
    return from.dense() ? from.at(row + r, begin) : buffer + r * panel_pitch(columns);
  }

  void block(int64_t row, int64_t count, Buffer& buffer) const {
    const int64_t length = dx.rows.length;
    float sum[kMostPanelRows] = {};
    for (int64_t begin = 0; begin < length; begin += columns) {
      const int64_t n = std::min(columns, length - begin);
      fetch(y, row, count, begin, n, buffer.y);
      fetch(g, row, count, begin, n, buffer.g);
      for (int64_t r = 0; r < count; ++r) {
        sum[r] +=
            HWY_DYNAMIC_DISPATCH(dot)(fetched(y, row, r, begin, buffer.y),
                                      fetched(g, row, r, begin, buffer.g), static_cast<size_t>(n));
      }
    }
    for (int64_t begin = 0; begin < length; begin += columns) {
      const int64_t n = std::min(columns, length - begin);
      if (n < length) {  // else the buffers still hold the rows
        fetch(y, row, count, begin, n, buffer.y);
        fetch(g, row, count, begin, n, buffer.g);
      }
      for (int64_t r = 0; r < count; ++r) {
        float* out = dx.dense() ? dx.at(row + r, begin) : buffer.y + r * panel_pitch(columns);
        HWY_DYNAMIC_DISPATCH(combine)
        (fetched(y, row, r, begin, buffer.y), fetched(g, row, r, begin, buffer.g),
         static_cast<size_t>(n), sum[r], out);
        if (dx.dense()) continue;
        const int64_t at = dx.rows.offset(row + r) + begin * dx.rows.stride;
        narrow(out, n, element(dx.tensor.data, dx.tensor.dtype, at), dx.tensor.dtype,
               dx.rows.stride);
      }
    }
  }

  void run(int64_t begin, int64_t end) const {
    Buffer buffer;
    for (int64_t row = begin; row < end; row += panel) {
      block(row, std::min(panel, end - row), buffer);
    }
  }
};

Support supports(const Problem& p) {
  return Support::yes(p.op->work(p).bytes / 1e4, "the CPU's only kernel for softmax_grad");
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  const SoftmaxGrad grad(view_of(p.inputs[0], buffers.inputs[0]),
                         view_of(p.inputs[1], buffers.inputs[1]),
                         view_of(p.outputs[0], buffers.outputs[0]));
  const int threads = p.device.threads;
  return make_prepared([grad, threads](void*) {
    if (grad.dx.rows.length == 0) return;
    parallel_for(threads, grad.dx.rows.count,
                 [&](int64_t begin, int64_t end, int) { grad.run(begin, end); });
  });
}

}  // namespace

extern const KernelEntry softmax_grad_cpu_rows;
const KernelEntry softmax_grad_cpu_rows = {
    .op = "softmax_grad",
    .name = "softmax_grad_cpu_rows",
    .backend = Backend::kCpu,
    .supports = supports,
    .prepare = prepare,
};

}  // namespace me

#endif  // HWY_ONCE
