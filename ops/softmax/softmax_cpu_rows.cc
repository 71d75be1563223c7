// softmax_cpu_rows: y[M, N] = exp(x - max) / Σ exp(x - max), each thread a run of rows.
//
// A row of up to 32768 is read from memory once and its exponentials are computed once:
//
//   m = max x          e = exp(x - m), l = Σ e          y = e·(1/l)
//
// e lives in y's own row where that is dense fp32, else in the thread's buffer. A longer row goes
// by chunks, twice: a chunk at a time into a running normaliser (m, l), then the chunks again as
// exp(x - m)·(1/l). The second exp costs less than the exponentials' way to memory and back.
//
// Input with a column stride is fetched as a panel, a cache line of rows at a time
// (ops/cpu/panel.h):
//
//   x fp32, transposed:  16 rows side by side    buffer: [16 rows][2048 columns + 16]
//                        ┌────────────────┐
//          column j      │ one cache line │   ───►   r·2064 + j
//          column j + 1  │ one cache line │
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

constexpr int64_t kBuffer = kSoftmaxBuffer;  // fp32; 128 KiB of each thread's stack

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
    if (dense_output()) return row_softmax(in, n, static_cast<float*>(output(row, 0)));
    row_softmax(in, n, buffer);
    store(buffer, row, 0, n);
  }

  void long_row(int64_t row, float* buffer) const {
    Normalizer total;
    for_chunks(kBuffer, [&](int64_t begin, int64_t n) {
      total = merge(total, row_normalizer(logits(row, begin, n, buffer), n));
    });
    for_chunks(kBuffer, [&](int64_t begin, int64_t n) {
      const float* in = logits(row, begin, n, buffer);
      float* out = dense_output() ? static_cast<float*>(output(row, begin)) : buffer;
      row_exp_scaled(in, n, total.max, 1.0f / total.sum, out);
      if (out == buffer) store(out, row, begin, n);
    });
  }

  // `count` rows of input with a column stride.
  void panel(int64_t row, int64_t count, float* buffer) const {
    Normalizer total[kMostPanelRows];
    const int64_t length = x_rows.length;
    const int64_t columns = softmax_cached_row(x);
    const int64_t pitch = panel_pitch(columns);
    for_chunks(columns, [&](int64_t begin, int64_t n) {
      load_panel(x, x_rows, row, count, begin, n, buffer, pitch);
      for (int64_t r = 0; r < count; ++r) {
        float* in = buffer + r * pitch;
        if (n < length) {
          total[r] = merge(total[r], row_normalizer(in, n));
        } else {  // the panel holds the whole rows
          row_softmax(in, n, in);
          store(in, row + r, 0, n);
        }
      }
    });
    if (length <= columns) return;
    for_chunks(columns, [&](int64_t begin, int64_t n) {
      load_panel(x, x_rows, row, count, begin, n, buffer, pitch);
      for (int64_t r = 0; r < count; ++r) {
        float* in = buffer + r * pitch;
        row_exp_scaled(in, n, total[r].max, 1.0f / total[r].sum, in);
        store(in, row + r, begin, n);
      }
    });
  }

  void run(int64_t begin, int64_t end) const {
    alignas(64) float buffer[kBuffer + kMostPanelRows * panel_pitch(0)];
    if (x_rows.stride != 1 && x_rows.length > 1) {
      const int64_t together = panel_rows(x.dtype);
      for (int64_t row = begin; row < end; row += together) {
        panel(row, std::min(together, end - row), buffer);
      }
    } else if (x_rows.length <= kBuffer) {
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
