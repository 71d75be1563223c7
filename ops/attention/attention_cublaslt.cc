#include "ops/attention/attention_cublaslt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "ops/base/kernel.h"

namespace me {
namespace {

Error refuse(std::string message) { return {ErrorKind::kDevice, std::move(message)}; }

// Batch, heads of K and V, query heads of a group.
constexpr size_t kAxes = 3;
constexpr size_t kGroup = 2;
using Axes = std::array<int64_t, kAxes>;

// One operand of all the products of a kind: a matrix and where the others start.
struct Operand {
  std::string_view name;
  DType dtype = DType::kF32;
  int64_t alignment_bytes = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
  Axes strides{};  // elements from a product's matrix to the next one's, along each axis
};

Operand operand_of(std::string_view name, const TensorDesc& t, int64_t group, bool per_query_head) {
  Operand o;
  o.name = name;
  o.dtype = t.dtype;
  o.alignment_bytes = t.alignment_bytes;
  o.row_stride = t.strides[2];
  o.column_stride = t.strides[3];
  const int64_t head = t.strides[1];
  o.strides = per_query_head ? Axes{t.strides[0], group * head, head} : Axes{t.strides[0], head, 0};
  return o;
}

Operand transposed(Operand o) {
  std::swap(o.row_stride, o.column_stride);
  return o;
}

// What every matrix's address is a multiple of.
int64_t common_alignment(const Operand& o, const Axes& extents) {
  int64_t alignment = o.alignment_bytes;
  for (size_t i = 0; i < kAxes; ++i) {
    const int64_t bytes = o.strides[i] * size_of(o.dtype);
    if (extents[i] > 1 && bytes != 0) alignment = std::min(alignment, bytes & -bytes);
  }
  return alignment;
}

// Products op(A) [rows, inner] · op(B) [inner, columns] = D [rows, columns], one for each index.
struct Products {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t inner = 0;
  Axes extents{};
  Operand a, b, d;  // op(A), op(B), D
};

// The group as more columns of one product, where that axis continues them in B and D (A has none
// of it).
bool fold_group(Products& p) {
  const int64_t group = p.extents[kGroup];
  if (group == 1) return false;
  for (Operand* o : {&p.b, &p.d}) {
    if (p.columns > 1 && o->strides[kGroup] != p.columns * o->column_stride) return false;
  }
  for (Operand* o : {&p.b, &p.d}) {
    if (p.columns == 1) o->column_stride = o->strides[kGroup];
  }
  p.columns *= group;
  p.extents[kGroup] = 1;
  return true;
}

// Whether axes [first, last) make one batch: each continues the next in every operand. Axes of
// extent 1 do not count.
bool one_stride(const Products& p, size_t first, size_t last) {
  for (const Operand* o : {&p.a, &p.b, &p.d}) {
    int64_t inner = 1;  // products below the axis at hand
    int64_t stride = 0;
    for (size_t i = last; i-- > first;) {
      if (p.extents[i] == 1) continue;
      if (inner > 1 && o->strides[i] != inner * stride) return false;
      if (inner == 1) stride = o->strides[i];
      inner *= p.extents[i];
    }
  }
  return true;
}

int64_t batch_stride(const Products& p, const Operand& o, size_t first, size_t last) {
  for (size_t i = last; i-- > first;) {
    if (p.extents[i] > 1) return o.strides[i];
  }
  return 0;
}

Result<LtLaunches> launches_of(const Products& p, int device) {
  LtLaunches out;
  LtProduct& product = out.product;
  product.device = device;
  const auto a = lt_operand(p.a.dtype, p.rows, p.inner, p.a.row_stride, p.a.column_stride);
  const auto b = lt_operand(p.b.dtype, p.inner, p.columns, p.b.row_stride, p.b.column_stride);
  const auto d = lt_result(p.d.dtype, p.rows, p.columns, p.d.row_stride, p.d.column_stride);
  for (const auto& [operand, fits] :
       {std::pair(&p.a, a.has_value()), {&p.b, b.has_value()}, {&p.d, d.has_value()}}) {
    if (!fits) {
      return refuse(fmt::format(
          "found {} with strides {} and {} within a head, expected {} and the other one at least "
          "that extent",
          operand->name, operand->row_stride, operand->column_stride,
          operand == &p.d ? "stride 1 along its last axis" : "1 as one of them"));
    }
  }
  product.a = a->matrix;
  product.b = b->matrix;
  product.d = *d;
  product.transpose_a = a->transpose;
  product.transpose_b = b->transpose;

  // The axes of the batch: those that leave the fewest launches.
  constexpr int64_t kMostBatch = 65535;
  size_t first = 0;
  size_t last = 0;
  int64_t most = 0;
  for (size_t i = 0; i <= kAxes; ++i) {
    for (size_t j = i; j <= kAxes; ++j) {
      int64_t batch = 1;
      for (size_t k = i; k < j; ++k) batch *= p.extents[k];
      if (batch > most && batch <= kMostBatch && one_stride(p, i, j)) {
        most = batch;
        first = i;
        last = j;
      }
    }
  }
  product.batch = most;
  LtMatrix* const matrices[] = {&product.a, &product.b, &product.d};
  const Operand* const operands[] = {&p.a, &p.b, &p.d};
  for (size_t i = 0; i < 3; ++i) {
    matrices[i]->batch_stride = most > 1 ? batch_stride(p, *operands[i], first, last) : 0;
    matrices[i]->alignment_bytes = common_alignment(*operands[i], p.extents);
  }

  Axes loop = p.extents;
  for (size_t i = first; i < last; ++i) loop[i] = 1;
  const double launches =
      static_cast<double>(loop[0]) * static_cast<double>(loop[1]) * static_cast<double>(loop[2]);
  if (launches > static_cast<double>(kMostLtLaunches)) {
    return refuse(
        fmt::format("found {}, {} and {} with no one stride through the batch and the heads, "
                    "{} launches, expected at most {}",
                    p.a.name, p.b.name, p.d.name, launches, kMostLtLaunches));
  }
  for (int64_t i = 0; i < loop[0]; ++i) {
    for (int64_t j = 0; j < loop[1]; ++j) {
      for (int64_t k = 0; k < loop[2]; ++k) {
        const auto offset = [&](const Operand& o) {
          return i * o.strides[0] + j * o.strides[1] + k * o.strides[2];
        };
        out.at.push_back({offset(p.a), offset(p.b), offset(p.d)});
      }
    }
  }
  if (auto refusal = lt_refusal(product)) return refuse(std::move(*refusal));
  return out;
}

// With the group as columns where that can be, else without.
Result<LtLaunches> fewest_launches(const Products& p, int device) {
  Products folded = p;
  if (fold_group(folded)) {
    auto launches = launches_of(folded, device);
    if (launches.ok()) return launches;
  }
  return launches_of(p, device);
}

}  // namespace

Result<AttentionLtPlan> attention_lt_plan(const Problem& p) {
  AttentionLtPlan plan;
  plan.sizes = attention_sizes(p);
  const AttentionSizes& s = plan.sizes;
  if (s.kv_len == 0) return refuse("found kv_len = 0, expected a product to compute");
  const DType dtype = p.inputs[0].dtype;

  const int64_t wide = 16 / size_of(dtype);
  plan.scores_ld = (s.kv_len + wide - 1) / wide * wide;
  plan.scores_rows = s.batch * s.heads * s.q_len;
  const double bytes = static_cast<double>(plan.scores_rows) * static_cast<double>(plan.scores_ld) *
                       static_cast<double>(size_of(dtype));
  // A quarter of the device: the rest of the model wants memory too.
  const int64_t most = p.device.memory_bytes / 4;
  if (!(bytes <= static_cast<double>(most))) {
    return refuse(
        fmt::format("found scores of {:.4g} bytes, expected at most {:.4g}, a quarter of "
                    "the device's memory",
                    bytes, static_cast<double>(most)));
  }
  if (std::max(plan.scores_rows, plan.scores_ld) > std::numeric_limits<int32_t>::max()) {
    return refuse(fmt::format("found {} rows of {} scores, expected fewer than 2^31 of either",
                              plan.scores_rows, plan.scores_ld));
  }
  plan.scores_bytes = plan.scores_rows * plan.scores_ld * size_of(dtype);

  TensorDesc scores = dense(dtype, {s.batch, s.heads, s.q_len, plan.scores_ld});
  scores.alignment_bytes = kWorkspaceAlignment;
  const Axes extents{s.batch, s.kv_heads, s.group};
  const Operand q = operand_of("q", p.inputs[0], s.group, true);
  const Operand k = operand_of("k", p.inputs[1], s.group, false);
  const Operand v = operand_of("v", p.inputs[2], s.group, false);
  const Operand o = operand_of("the output", p.outputs[0], s.group, true);
  const Operand sp = operand_of("the scores", scores, s.group, true);
  ME_ASSIGN_OR_RETURN(plan.scores, fewest_launches({.rows = s.kv_len,
                                                    .columns = s.q_len,
                                                    .inner = s.head_dim,
                                                    .extents = extents,
                                                    .a = k,
                                                    .b = transposed(q),
                                                    .d = transposed(sp)},
                                                   p.device.index));
  ME_ASSIGN_OR_RETURN(plan.values, fewest_launches({.rows = s.value_dim,
                                                    .columns = s.q_len,
                                                    .inner = s.kv_len,
                                                    .extents = extents,
                                                    .a = transposed(v),
                                                    .b = transposed(sp),
                                                    .d = transposed(o)},
                                                   p.device.index));
  return plan;
}

}  // namespace me
