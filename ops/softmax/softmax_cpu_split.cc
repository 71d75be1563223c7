// softmax_cpu_split: y[M, N] for few long rows, each row cut into T = ceil(N / C) chunks.
//
//   1. partials  M·T chunks over the threads   (m, l) of the chunk            scratch [M, T]
//   2. merge     M rows over the threads       (m, l) of the row, in order    scratch [M]
//   3. apply     M·T chunks over the threads   rereads x, y = exp(x - m)·(1/l)
//
// A chunk normalised by its own (m, l) would be wrong: only step 3, with the row's pair, writes y.
// Each step starts when the one before has finished. Scratch is 8·M·(T + 1) bytes of the workspace.
//
// Numerics: fp32 throughout, one rounding at the store. C is fixed and partials merge from left to
// right, so the bits depend on the row alone, not on the threads.
#include <fmt/format.h>

#include "ops/base/kernel.h"
#include "ops/base/rows.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/softmax/cpu_cost.h"
#include "ops/softmax/row_ops.h"
#include "ops/softmax/split.h"

namespace me {
namespace {

SoftmaxSplit split_of(const Problem& p) {
  const Rows rows = rows_of(p.inputs[0]);
  return {rows.count, rows.length};
}

struct SplitSoftmax {
  TensorView x;
  TensorView y;
  Rows x_rows;
  Rows y_rows;
  SoftmaxSplit split;
  Normalizer* partials;  // [rows, chunks]
  Normalizer* totals;    // [rows]

  // Chunk t of a row as dense fp32: in place where it is that, else in `buffer`.
  const float* logits(int64_t row, int64_t t, float* buffer) const {
    const int64_t at = x_rows.offset(row) + split.begin(t) * x_rows.stride;
    const void* from = element(x.data, x.dtype, at);
    if (x.dtype == DType::kF32 && x_rows.stride == 1) return static_cast<const float*>(from);
    widen(from, x.dtype, x_rows.stride, split.size(t), buffer);
    return buffer;
  }

  // `first` and `last` count the chunks of all rows.
  void reduce(int64_t first, int64_t last) const {
    alignas(64) float buffer[kSoftmaxChunk];
    for (int64_t i = first; i < last; ++i) {
      const int64_t t = i % split.chunks();
      partials[i] = row_normalizer(logits(i / split.chunks(), t, buffer), split.size(t));
    }
  }

  void merge_rows(int64_t first, int64_t last) const {
    for (int64_t row = first; row < last; ++row) {
      Normalizer total;
      for (int64_t t = 0; t < split.chunks(); ++t) {
        total = merge(total, partials[row * split.chunks() + t]);
      }
      totals[row] = total;
    }
  }

  void apply(int64_t first, int64_t last) const {
    alignas(64) float buffer[kSoftmaxChunk];
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / split.chunks();
      const int64_t t = i % split.chunks();
      const int64_t n = split.size(t);
      void* to = element(y.data, y.dtype, y_rows.offset(row) + split.begin(t) * y_rows.stride);
      const bool in_place = y.dtype == DType::kF32 && y_rows.stride == 1;
      float* out = in_place ? static_cast<float*>(to) : buffer;
      row_exp_scaled(logits(row, t, buffer), n, totals[row].max, 1.0f / totals[row].sum, out);
      if (!in_place) narrow(out, n, to, y.dtype, y_rows.stride);
    }
  }
};

Support supports(const Problem& p) {
  const SoftmaxSplit split = split_of(p);
  return Support::yes(
      softmax_split_cost_us(p),
      fmt::format("{} rows of {} in chunks of {}, {} chunks to a row, over {} threads", split.rows,
                  split.length, split.chunk, split.chunks(), p.device.threads));
}

int64_t workspace_bytes(const Problem& p) { return split_of(p).scratch_bytes(); }

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  const SoftmaxSplit split = split_of(p);
  auto* scratch = static_cast<Normalizer*>(buffers.workspace);
  const SplitSoftmax softmax{view_of(p.inputs[0], buffers.inputs[0]),
                             view_of(p.outputs[0], buffers.outputs[0]),
                             rows_of(p.inputs[0]),
                             rows_of(p.outputs[0]),
                             split,
                             scratch,
                             scratch + split.rows * split.chunks()};
  const int threads = p.device.threads;
  return make_prepared([softmax, threads](void*) {
    const int64_t rows = softmax.split.rows;
    const int64_t chunks = rows * softmax.split.chunks();
    parallel_for(threads, chunks,
                 [&](int64_t first, int64_t last, int) { softmax.reduce(first, last); });
    parallel_for(threads, rows,
                 [&](int64_t first, int64_t last, int) { softmax.merge_rows(first, last); });
    parallel_for(threads, chunks,
                 [&](int64_t first, int64_t last, int) { softmax.apply(first, last); });
  });
}

}  // namespace

extern const KernelEntry softmax_cpu_split;
const KernelEntry softmax_cpu_split = {
    .op = "softmax",
    .name = "softmax_cpu_split",
    .backend = Backend::kCpu,
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
};

}  // namespace me
