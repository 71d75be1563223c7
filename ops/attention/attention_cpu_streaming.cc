// attention_cpu_streaming: O = softmax(scale · Q·Kᵀ + mask) · V, never holding more than one block
// of scores.
//
// The `group` query heads that share a head of K and V form one matrix of q_len·group rows, row
// query·group + g, so that a tile of K and V is packed once for all of them and decoding has work
// to share. Rows are cut into tiles of up to 192:
//
//             key tiles of 128 ──►
//   row tile  ┌──┬──┬──┬──┐
//   0         │╲ │  │  │  │   ╲ crosses the diagonal: the mask applies
//   1         │  │╲ │  │  │   blank above it: never computed
//   2         │  │  │╲ │  │   blank below it: no mask
//   3         │  │  │  │╲ │
//             └──┴──┴──┴──┘
//
// One unit of work is a row tile of one (batch, head of K): it carries (m, l, a) over its key tiles
// (attention_cpu_tile.cc) and stores a / l. Threads draw units from a counter, each head's longest
// first; which thread computes a unit changes nothing about its bits.
//
// Where there are fewer units than threads (decoding), each is split over its keys. The parts leave
// their (m, l, a) in the workspace, and a second pass merges them in order.
//
// Scratch for each thread, in floats, with D and Dv rounded up to 16: 192·D for scaled queries,
// 192·Dv for a, 128·D and 128·Dv for the packed tiles, 6·128 scores, 2·192 for m and l. That is
// 165 KiB at D = Dv = 64, inside a second-level cache, and 645 KiB at 256, past some; but queries
// and a are swept in order once for each key tile, and lower row tiles proved slower there too.
// For each part of a split unit: rows·(Dv + 2).
//
// Numerics: fp32 throughout. The scale is multiplied into the queries, in double, and rounded once.
// Other types and strides are widened into the packed tiles, exactly; the output is rounded once.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/attention/attention_cpu_tile.h"
#include "ops/base/kernel.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/softmax/normalizer.h"

namespace me {
namespace {

constexpr int64_t kMaxTileRows = 192;    // packing costs about 2 % of the arithmetic at this height
constexpr int64_t kMinTileRows = 24;     // and about 15 % at this one
constexpr int64_t kPartsPerThread = 4;   // of split units, so that an uneven number balances
constexpr int64_t kMinTilesPerPart = 2;  // 256 keys: below that, merging is felt

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How a problem is cut. Depends on the problem alone, the number of threads included.
struct Schedule {
  AttentionSizes sizes;
  int64_t threads = 1;
  int64_t rows = 0;       // query rows of one head of K
  int64_t tile_rows = 0;  // in a row tile
  int64_t row_tiles = 0;  // of one head of K
  int64_t splits = 1;     // parts that each row tile's keys are cut into
  int64_t units = 0;      // row tiles, all heads of K together
};

Schedule schedule(const Problem& problem) {
  Schedule s;
  s.sizes = attention_sizes(problem);
  s.threads = problem.device.threads;
  s.rows = s.sizes.q_len * s.sizes.group;
  const int64_t heads = s.sizes.batch * s.sizes.kv_heads;
  if (problem.outputs[0].count() == 0) return s;
  s.tile_rows = kMaxTileRows;
  while (s.tile_rows > kMinTileRows && heads * ceil_div(s.rows, s.tile_rows) < 2 * s.threads) {
    s.tile_rows /= 2;
  }
  s.tile_rows = std::min(s.tile_rows, s.rows);
  s.row_tiles = ceil_div(s.rows, s.tile_rows);
  s.units = heads * s.row_tiles;
  if (s.units < s.threads) {
    const int64_t key_tiles = s.sizes.mask.key_tiles(s.sizes.q_len, kTileKeys);
    s.splits = std::clamp<int64_t>(ceil_div(kPartsPerThread * s.threads, s.units), 1,
                                   std::max<int64_t>(1, key_tiles / kMinTilesPerPart));
  }
  s.threads = std::min(s.threads, s.units * s.splits);
  return s;
}

// Offsets into the workspace, in floats.
struct Layout {
  // Of one thread's scratch.
  int64_t q = 0, acc = 0, k_tile = 0, v_tile = 0, scores = 0, row_max = 0, row_sum = 0;
  int64_t per_thread = 0;
  // Of one part: a [tile_rows, padded(value_dim)], m [tile_rows], l [tile_rows].
  int64_t part_max = 0, part_sum = 0;
  int64_t per_part = 0;
  int64_t parts = 0;  // where they begin
  int64_t total = 0;
};

Layout layout(const Schedule& s) {
  const int64_t d = padded(s.sizes.head_dim);
  const int64_t dv = padded(s.sizes.value_dim);
  const int64_t rows = padded(s.tile_rows);
  Layout at;
  int64_t used = 0;
  const auto take = [&](int64_t floats) {
    const int64_t offset = used;
    used += padded(floats);
    return offset;
  };
  at.q = take(rows * d);
  at.acc = take(rows * dv);
  at.k_tile = take(d * kTileKeys);
  at.v_tile = take(kTileKeys * dv);
  at.scores = take(kBlockRows * kTileKeys);
  at.row_max = take(rows);
  at.row_sum = take(rows);
  at.per_thread = used;
  used = 0;
  take(s.tile_rows * dv);
  at.part_max = take(s.tile_rows);
  at.part_sum = take(s.tile_rows);
  at.per_part = used;
  at.parts = at.per_thread * s.threads;
  at.total = at.parts + (s.splits > 1 ? at.per_part * s.units * s.splits : 0);
  return at;
}

class StreamingAttention final : public PreparedOp {
 public:
  StreamingAttention(const Problem& problem, const Buffers& buffers)
      : q_(view_of(problem.inputs[0], buffers.inputs[0])),
        k_(view_of(problem.inputs[1], buffers.inputs[1])),
        v_(view_of(problem.inputs[2], buffers.inputs[2])),
        out_(view_of(problem.outputs[0], buffers.outputs[0])),
        schedule_(schedule(problem)),
        layout_(layout(schedule_)),
        workspace_(static_cast<float*>(buffers.workspace)) {}

  void enqueue(void*) override {
    const int64_t work = schedule_.units * schedule_.splits;
    std::atomic<int64_t> next = 0;
    parallel_for(static_cast<int>(schedule_.threads), schedule_.threads,
                 [&](int64_t, int64_t, int thread) {
                   float* scratch = workspace_ + thread * layout_.per_thread;
                   for (int64_t i = next++; i < work; i = next++) {
                     run_part(unit_at(i / schedule_.splits), i % schedule_.splits, scratch);
                   }
                 });
    if (schedule_.splits == 1) return;
    parallel_for(static_cast<int>(schedule_.threads), schedule_.units,
                 [&](int64_t begin, int64_t end, int thread) {
                   float* scratch = workspace_ + thread * layout_.per_thread;
                   for (int64_t i = begin; i < end; ++i) merge_parts(unit_at(i), scratch);
                 });
  }

 private:
  struct Unit {
    int64_t index = 0;
    int64_t batch = 0;
    int64_t kv_head = 0;
    int64_t row_begin = 0;
    int64_t row_end = 0;
  };

  // A head's tiles run from the last one, which sees the most keys.
  Unit unit_at(int64_t index) const {
    const int64_t tile = schedule_.row_tiles - 1 - index % schedule_.row_tiles;
    const int64_t head = index / schedule_.row_tiles;
    Unit unit;
    unit.index = index;
    unit.batch = head / schedule_.sizes.kv_heads;
    unit.kv_head = head % schedule_.sizes.kv_heads;
    unit.row_begin = tile * schedule_.tile_rows;
    unit.row_end = std::min(unit.row_begin + schedule_.tile_rows, schedule_.rows);
    return unit;
  }

  // Element [batch, head, query, 0] of q or the output, where row = query·group + g.
  void* row_of(const TensorView& t, const Unit& unit, int64_t row) const {
    const int64_t group = schedule_.sizes.group;
    return element(t.data, t.dtype,
                   unit.batch * t.strides[0] + (unit.kv_head * group + row % group) * t.strides[1] +
                       row / group * t.strides[2]);
  }

  static StridedMatrix head_of(const TensorView& t, const Unit& unit) {
    return {element(t.data, t.dtype, unit.batch * t.strides[0] + unit.kv_head * t.strides[1]),
            t.dtype, t.strides[2], t.strides[3]};
  }

  int64_t visible_keys(int64_t row) const {
    return schedule_.sizes.mask.visible_keys(row / schedule_.sizes.group);
  }

  float* part_of(const Unit& unit, int64_t split) const {
    return workspace_ + layout_.parts + (unit.index * schedule_.splits + split) * layout_.per_part;
  }

  void load_queries(const Unit& unit, float* to) const {
    const int64_t head_dim = schedule_.sizes.head_dim;
    const int64_t stride = padded(head_dim);
    for (int64_t row = unit.row_begin; row < unit.row_end; ++row, to += stride) {
      widen(row_of(q_, unit, row), q_.dtype, q_.strides[3], head_dim, to);
      for (int64_t i = 0; i < head_dim; ++i) {
        to[i] = static_cast<float>(schedule_.sizes.scale * static_cast<double>(to[i]));
      }
      std::fill(to + head_dim, to + stride, 0.0f);
    }
  }

  // Divides a [padded(value_dim)] by l and stores the row.
  void store_row(const Unit& unit, int64_t row, float* acc, float row_sum) const {
    const int64_t value_dim = schedule_.sizes.value_dim;
    if (visible_keys(row) == 0) {
      std::fill(acc, acc + value_dim, 0.0f);
    } else {
      for (int64_t i = 0; i < value_dim; ++i) acc[i] /= row_sum;
    }
    narrow(acc, value_dim, row_of(out_, unit, row), out_.dtype, out_.strides[3]);
  }

  // Attends to the unit's keys, or to one part of them, and stores the result or leaves (m, l, a).
  void run_part(const Unit& unit, int64_t split, float* scratch) const {
    const AttentionSizes& sizes = schedule_.sizes;
    const int64_t splits = schedule_.splits;
    std::array<int64_t, kMaxTileRows> visible;
    TileArgs args;
    args.k = head_of(k_, unit);
    args.v = head_of(v_, unit);
    args.head_dim = sizes.head_dim;
    args.value_dim = sizes.value_dim;
    args.rows = unit.row_end - unit.row_begin;
    for (int64_t r = 0; r < args.rows; ++r) {
      visible[static_cast<size_t>(r)] = visible_keys(unit.row_begin + r);
    }
    args.visible = visible.data();
    const int64_t tiles = sizes.mask.key_tiles((unit.row_end - 1) / sizes.group + 1, kTileKeys);
    args.key_begin = tiles * split / splits * kTileKeys;
    args.key_end = tiles * (split + 1) / splits * kTileKeys;
    load_queries(unit, scratch + layout_.q);
    args.q = scratch + layout_.q;
    args.k_tile = scratch + layout_.k_tile;
    args.v_tile = scratch + layout_.v_tile;
    args.scores = scratch + layout_.scores;
    float* part = splits > 1 ? part_of(unit, split) : nullptr;
    args.acc = part != nullptr ? part : scratch + layout_.acc;
    args.row_max = part != nullptr ? part + layout_.part_max : scratch + layout_.row_max;
    args.row_sum = part != nullptr ? part + layout_.part_sum : scratch + layout_.row_sum;
    attend_tile(args);
    if (part != nullptr) return;
    for (int64_t r = 0; r < args.rows; ++r) {
      store_row(unit, unit.row_begin + r, args.acc + r * padded(sizes.value_dim), args.row_sum[r]);
    }
  }

  void merge_parts(const Unit& unit, float* scratch) const {
    const int64_t stride = padded(schedule_.sizes.value_dim);
    float* acc = scratch + layout_.acc;
    for (int64_t r = 0; r < unit.row_end - unit.row_begin; ++r) {
      Normalizer all;
      for (int64_t split = 0; split < schedule_.splits; ++split) {
        const float* part = part_of(unit, split);
        all = merge(all, {part[layout_.part_max + r], part[layout_.part_sum + r]});
      }
      std::fill(acc, acc + stride, 0.0f);
      for (int64_t split = 0; split < schedule_.splits; ++split) {
        const float* part = part_of(unit, split);
        const float factor = rescale_factor(part[layout_.part_max + r], all.max);
        for (int64_t i = 0; i < stride; ++i) acc[i] += factor * part[r * stride + i];
      }
      store_row(unit, unit.row_begin + r, acc, all.sum);
    }
  }

  TensorView q_;
  TensorView k_;
  TensorView v_;
  TensorView out_;
  Schedule schedule_;
  Layout layout_;
  float* workspace_;
};

Support supports(const Problem& problem) {
  const Schedule s = schedule(problem);
  // About what a core does with 8 lanes, and what a socket reads.
  const Work work = problem.op->work(problem);
  const double cost_us = std::max(
      work.flops / (2e4 * static_cast<double>(std::max<int64_t>(1, s.threads))), work.bytes / 1e4);
  return Support::yes(
      cost_us, fmt::format("row tiles of {} in {} units, keys in {} part{}", s.tile_rows, s.units,
                           s.splits, s.splits == 1 ? "" : "s, merged in order"));
}

int64_t workspace_bytes(const Problem& problem) {
  const Schedule s = schedule(problem);
  return s.units == 0 ? 0 : layout(s).total * static_cast<int64_t>(sizeof(float));
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& problem, const Buffers& buffers) {
  return {std::make_unique<StreamingAttention>(problem, buffers)};
}

}  // namespace

extern const KernelEntry attention_cpu_streaming;
const KernelEntry attention_cpu_streaming = {
    .op = "attention",
    .name = "attention_cpu_streaming",
    .backend = Backend::kCpu,
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
};

}  // namespace me
