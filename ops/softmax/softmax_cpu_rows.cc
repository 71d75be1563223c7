// softmax_cpu_rows: y[M, N] = exp(x - max) / Σ exp(x - max), each thread a run of rows.
//
// A row of up to 16384 is read from memory once and its exponentials are computed once:
//
//   m = max x          e = exp(x - m), l = Σ e          y = e·(1/l)
//
// e lives in y's own row where that is dense fp32, else in the thread's buffer. A row too long for
// that goes by chunks, twice: a chunk at a time into a running normaliser (m, l), then the chunks
// again as exp(x - m)·(1/l). The second exp costs less than a row's way to memory and back.
//
// Input with a column stride is fetched as a panel, 16 rows at a time (ops/cpu/panel.h):
//
//   x, transposed:  16 rows side by side        buffer: [16 rows][1024 columns]
//                   ┌────────────────┐
//     column j      │ one cache line │   ───►   r·1024 + j
//     column j + 1  │ one cache line │
//
// Numerics: fp32 throughout, one rounding at the store. Which of the ways a row takes, and the
// order of its sum, depend on the shapes, strides and type alone, never on the other rows or the
// threads.
#include <algorithm>

#include <fmt/format.h>

#include "ops/base/kernel.h"
#include "ops/cpu/panel.h"
#include "ops/cpu/parallel.h"
#include "ops/softmax/cpu_cost.h"
#include "ops/softmax/row_ops.h"

namespace me {
namespace {

constexpr int64_t kPanelColumns = kSoftmaxCachedColumns;
constexpr int64_t kBuffer = kSoftmaxCachedRow;  // fp32; 64 KiB of each thread's stack
static_assert(kBuffer == kPanelRows * kPanelColumns);

struct Softmax {
  TensorView x;
  TensorView y;
  Rows x_rows;
  Rows y_rows;

  bool dense_input() const { return x.dtype == DType::kF32 && x_rows.stride == 1; }
  bool dense_output() const { return y.dtype == DType::kF32 && y_rows.stride == 1; }

  void* output(int64_t row, int64_t begin) const {
    return element(y.data, y.dtype, y_rows.offset(row) + begin * y_rows.stride);
  }
  void store(const float* values, int64_t row, int64_t begin, int64_t n) const {
    narrow(values, n, output(row, begin), y.dtype, y_rows.stride);
  }

  // Logits [begin, begin + n) of a row as dense fp32: in place where they are that, else in
  // `buffer`.
  const float* logits(int64_t row, int64_t begin, int64_t n, float* buffer) const {
    const void* from = element(x.data, x.dtype, x_rows.offset(row) + begin * x_rows.stride);
    if (dense_input()) return static_cast<const float*>(from);
    widen(from, x.dtype, x_rows.stride, n, buffer);
    return buffer;
  }

  void short_row(int64_t row, float* buffer) const {
    const int64_t n = x_rows.length;
    const float* in = logits(row, 0, n, buffer);
    float* e = dense_output() ? static_cast<float*>(output(row, 0)) : buffer;
    const float sum = row_exp(in, n, row_max(in, n), e);
    row_scale(e, n, 1.0f / sum, e);
    if (e == buffer) store(e, row, 0, n);
  }

  void long_row(int64_t row, float* buffer) const {
    Normalizer total;
    for_chunks(kSoftmaxCachedRow, [&](int64_t begin, int64_t n) {
      total = merge(total, row_normalizer(logits(row, begin, n, buffer), n));
    });
    for_chunks(kSoftmaxCachedRow, [&](int64_t begin, int64_t n) {
      const float* in = logits(row, begin, n, buffer);
      float* out = dense_output() ? static_cast<float*>(output(row, begin)) : buffer;
      row_exp_scaled(in, n, total.max, 1.0f / total.sum, out);
      if (out == buffer) store(out, row, begin, n);
    });
  }

  // `count` <= kPanelRows rows of input with a column stride.
  void panel(int64_t row, int64_t count, float* buffer) const {
    Normalizer total[kPanelRows];
    const int64_t length = x_rows.length;
    for_chunks(kPanelColumns, [&](int64_t begin, int64_t n) {
      load_panel(x, x_rows, row, count, begin, n, buffer, kPanelColumns);
      for (int64_t r = 0; r < count; ++r) {
        float* in = buffer + r * kPanelColumns;
        if (n < length) {
          total[r] = merge(total[r], row_normalizer(in, n));
        } else {  // the panel holds the whole rows
          const float sum = row_exp(in, n, row_max(in, n), in);
          row_scale(in, n, 1.0f / sum, in);
          store(in, row + r, 0, n);
        }
      }
    });
    if (length <= kPanelColumns) return;
    for_chunks(kPanelColumns, [&](int64_t begin, int64_t n) {
      load_panel(x, x_rows, row, count, begin, n, buffer, kPanelColumns);
      for (int64_t r = 0; r < count; ++r) {
        float* in = buffer + r * kPanelColumns;
        row_exp_scaled(in, n, total[r].max, 1.0f / total[r].sum, in);
        store(in, row + r, begin, n);
      }
    });
  }

  void run(int64_t begin, int64_t end) const {
    alignas(64) float buffer[kBuffer];
    if (x_rows.stride != 1 && x_rows.length > 1) {
      for (int64_t row = begin; row < end; row += kPanelRows) {
        panel(row, std::min(kPanelRows, end - row), buffer);
      }
    } else if (x_rows.length <= kSoftmaxCachedRow) {
      for (int64_t row = begin; row < end; ++row) short_row(row, buffer);
    } else {
      for (int64_t row = begin; row < end; ++row) long_row(row, buffer);
    }
  }

  template <class Body>
  void for_chunks(int64_t chunk, const Body& body) const {
    for (int64_t begin = 0; begin < x_rows.length; begin += chunk) {
      body(begin, std::min(chunk, x_rows.length - begin));
    }
  }
};

Support supports(const Problem& p) {
  const Rows rows = rows_of(p.inputs[0]);
  return Support::yes(softmax_rows_cost_us(p),
                      fmt::format("a thread to each row: {} rows of {}, {} threads", rows.count,
                                  rows.length, p.device.threads));
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  Softmax softmax{view_of(p.inputs[0], buffers.inputs[0]),
                  view_of(p.outputs[0], buffers.outputs[0]), rows_of(p.inputs[0]),
                  rows_of(p.outputs[0])};
  const int threads = p.device.threads;
  return make_prepared([softmax, threads](void*) {
    if (softmax.x_rows.length == 0) return;
    parallel_for(threads, softmax.x_rows.count,
                 [&](int64_t begin, int64_t end, int) { softmax.run(begin, end); });
  });
}

}  // namespace

extern const KernelEntry softmax_cpu_rows;
const KernelEntry softmax_cpu_rows = {
    .op = "softmax",
    .name = "softmax_cpu_rows",
    .backend = Backend::kCpu,
    .supports = supports,
    .prepare = prepare,
};

}  // namespace me
