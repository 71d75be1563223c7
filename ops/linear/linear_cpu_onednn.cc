// linear_cpu_onednn: Y = act(X·W + b) through oneDNN's fp32 product.
//
//   X, W, b ─► fp32, strides that oneDNN takes ─► product ─► + b, ReLU, one rounding ─► Y
//              (as they lie where they already are)          (in place where Y is fp32)
//
// Who computes what. oneDNN computes the fp32 accumulator [M, N] with its own OpenMP threads; the
// same pool converts operands before and finishes rows after. What needs converting or packing goes
// through the workspace, X and the accumulator by blocks of at most kBlockRows rows; constant
// weights are converted once, in prepare(), into memory that the prepared op owns, and so is the
// blocked copy of them that oneDNN's newer kernels want.
//
// Numerics. 16-bit inputs are widened, which is exact, so that every sum is fp32 and the result is
// rounded once. A bias without ReLU on a fp32 result is oneDNN's to add. ReLU never is: its post-op
// takes the maximum with zero by an instruction that answers 0 for NaN, on every x86 it runs on.
// Where oneDNN takes its GEMM (AVX2), which applies post-ops in a pass of its own, ours costs the
// same; its blocked kernels (AVX-512) apply them in registers, and there the pass costs 1 to 3 % of
// large products (bench/evidence).
//
// Limits: each extent at most ProductSpec::kMaxExtent. An operand with a larger stride is packed,
// and so is a single row or column that is not dense.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "ops/base/kernel.h"
#include "ops/base/rows.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/parallel.h"
#include "ops/linear/linear.h"
#include "ops/linear/onednn.h"

namespace me {
namespace {

constexpr int64_t kBlockRows = 1024;  // a GEMM repacks W per block: a few per mille of 1024 rows
constexpr int64_t kChunk = 512;       // elements that a finishing thread holds in L1
constexpr int64_t kElementsPerThread = 4 << 10;  // worth a thread: it holds them in its cache
constexpr int64_t kAlignment = 64;               // a cache line, and what oneDNN asks for

int threads_for(int64_t elements, int threads) {
  return static_cast<int>(std::clamp<int64_t>(elements / kElementsPerThread, 1, threads));
}

// ---- operands ----

struct Strides {
  int64_t row = 0;
  int64_t column = 0;
};

// The strides of a rows x columns matrix as oneDNN wants them: 1 one way, spanning that extent the
// other way. Nothing where the matrix must be packed.
std::optional<Strides> as_it_lies(int64_t rows, int64_t columns, Strides s) {
  const auto spans = [](int64_t stride, int64_t extent) {
    return stride >= extent && stride <= ProductSpec::kMaxExtent;
  };
  // A single row or column, as ProductSpec wants it. The stride of the unit extent does not count.
  if (rows == 1 || columns == 1) {
    const int64_t step = rows == 1 ? s.column : s.row;
    return step == 1 || rows == columns ? std::optional(Strides{columns, 1}) : std::nullopt;
  }
  if (s.column == 1 && spans(s.row, columns)) return s;
  if (s.row == 1 && spans(s.column, rows)) return s;
  return std::nullopt;
}

// A tensor's rows as those of one matrix, or nothing where no single stride leads through them.
std::optional<int64_t> merged_row_stride(const Rows& rows) {
  const TensorDesc& t = rows.leading;
  int64_t stride = 0;
  int64_t inner = 1;  // rows below the axis at hand
  for (int i = t.shape.rank() - 1; i >= 0; --i) {
    if (t.shape[i] == 1) continue;
    if (inner == 1) {
      stride = t.strides[i];
    } else if (t.strides[i] != inner * stride) {
      return std::nullopt;
    }
    inner *= t.shape[i];
  }
  return stride;
}

// How one operand comes to oneDNN.
struct Operand {
  bool pack = false;
  bool by_columns = false;  // packed column after column, where those lie closer together
  Strides strides;          // what oneDNN sees
};

// A rows x columns operand, at most `block` rows of which are packed at a time.
Operand plan_operand(DType dtype, int64_t rows, int64_t columns, std::optional<int64_t> row_stride,
                     int64_t column_stride, int64_t block) {
  Operand out;
  if (dtype == DType::kF32 && row_stride) {
    if (const auto s = as_it_lies(rows, columns, {*row_stride, column_stride})) {
      out.strides = *s;
      return out;
    }
  }
  out.pack = true;
  out.by_columns =
      rows > 1 && columns > 1 && row_stride && *row_stride > 0 && *row_stride < column_stride;
  out.strides = out.by_columns ? Strides{1, block} : Strides{columns, 1};
  return out;
}

// lines x length elements to fp32, densely: line i starts at offset(i), and its elements lie
// `stride` apart.
template <class Offset>
void pack_lines(const void* from, DType dtype, int64_t lines, int64_t length, int64_t stride,
                const Offset& offset, float* to, int threads) {
  parallel_for(threads_for(lines * length, threads), lines, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      widen(element(from, dtype, offset(i)), dtype, stride, length, to + i * length);
    }
  });
}

// ---- the plan ----

struct Plan {
  LinearSizes size;
  bool relu = false;
  int threads = 1;
  int64_t block = 0;        // rows of X per product
  int64_t blocks = 0;       // the last one may overlap the one before
  bool in_place = false;    // the product writes Y itself
  bool fused_bias = false;  // and adds the bias
  bool finish = false;      // a pass of ours adds the bias, applies ReLU, converts
  Operand x;                // [M, K]
  Operand w;                // [K, N]
  bool pack_bias = false;
  bool constant_w = false;
  bool constant_bias = false;
  ProductSpec product;

  // The workspace, in bytes.
  int64_t x_at = 0;  // fp32 [block, K] or [K, block]
  int64_t w_at = 0;  // fp32 [K, N] or [N, K]
  int64_t bias_at = 0;
  int64_t acc_at = 0;  // fp32 [block, N]
  int64_t scratchpad_at = 0;
};

bool has_product(const Plan& plan) { return plan.size.k > 0; }

Plan make_plan(const Problem& p) {
  Plan plan;
  plan.size = linear_sizes(p);
  const int64_t m = plan.size.m;
  const int64_t n = plan.size.n;
  const int64_t k = plan.size.k;
  plan.relu = attrs_as<LinearAttrs>(*p.attrs).activation == Activation::kRelu;
  plan.threads = p.device.threads;

  const TensorDesc& x = p.inputs[0];
  const TensorDesc& w = p.inputs[1];
  const TensorDesc& y = p.outputs[0];
  const auto y_row = merged_row_stride(rows_of(y));
  const auto y_strides =
      y.dtype == DType::kF32 && y_row ? as_it_lies(m, n, {*y_row, y.strides.back()}) : std::nullopt;
  plan.in_place = y_strides && y_strides->column == 1;

  const auto x_row = merged_row_stride(rows_of(x));
  const auto plan_x = [&](int64_t block) {
    return plan_operand(x.dtype, m, k, x_row, x.strides.back(), block);
  };
  plan.block = m;
  if (plan_x(m).pack || !plan.in_place) {  // equal blocks, to bound the workspace
    plan.block = (m + (m - 1) / kBlockRows) / ((m - 1) / kBlockRows + 1);
  }
  plan.blocks = (m + plan.block - 1) / plan.block;
  plan.x = plan_x(plan.block);
  const WeightStrides ws = weight_strides(p);
  plan.w = plan_operand(w.dtype, k, n, ws.k, ws.n, k);
  plan.constant_w = w.constant;

  if (has_bias(p)) {
    const TensorDesc& bias = p.inputs[2];
    plan.pack_bias = bias.dtype != DType::kF32 || (n > 1 && bias.strides[0] != 1);
    plan.constant_bias = bias.constant;
  }
  plan.fused_bias = has_bias(p) && plan.in_place && !plan.relu && k > 0;
  plan.finish = k == 0 || !plan.in_place || plan.relu;

  plan.product = {
      .m = plan.block,
      .n = n,
      .k = k,
      .a_row = plan.x.strides.row,
      .a_column = plan.x.strides.column,
      .b_row = plan.w.strides.row,
      .b_column = plan.w.strides.column,
      .c_row = plan.in_place ? y_strides->row : n,
      .bias = plan.fused_bias,
      .may_pack_b = plan.constant_w,
      .threads = plan.threads,
  };
  return plan;
}

// Lays the workspace out; returns its size.
int64_t place_workspace(Plan& plan, int64_t scratchpad_bytes) {
  int64_t end = 0;
  const auto place = [&](int64_t& at, bool wanted, int64_t bytes) {
    at = end;
    if (wanted) end += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  const auto [m, n, k] = plan.size;
  const bool product = has_product(plan);
  place(plan.x_at, product && plan.x.pack, plan.block * k * 4);
  place(plan.w_at, product && plan.w.pack && !plan.constant_w, k * n * 4);
  place(plan.bias_at, plan.pack_bias && !plan.constant_bias, n * 4);
  place(plan.acc_at, product && !plan.in_place, plan.block * n * 4);
  place(plan.scratchpad_at, true, scratchpad_bytes);
  return end;
}

bool is_empty(const Problem& p) { return p.outputs[0].count() == 0; }

Support supports(const Problem& p) {
  const LinearSizes s = linear_sizes(p);
  for (int64_t extent : {s.m, s.n, s.k}) {
    if (!is_empty(p) && extent > ProductSpec::kMaxExtent) {
      return Support::no(fmt::format("M, N, K = {}, {}, {}, of which oneDNN takes at most {} each",
                                     s.m, s.n, s.k, ProductSpec::kMaxExtent));
    }
  }
  const Work work = p.op->work(p);
  const double cost_us = work.flops / (3e4 * p.device.threads) + work.bytes / 1e4;
  if (is_empty(p) || s.k == 0) return Support::yes(cost_us, "no product to compute");
  const auto product = Product::create(make_plan(p).product);
  if (!product.ok()) return Support::no(product.error().message);
  return Support::yes(cost_us, fmt::format("oneDNN's {}", product.value()->implementation()));
}

int64_t workspace_bytes(const Problem& p) {
  if (is_empty(p)) return 0;
  Plan plan = make_plan(p);
  if (!has_product(plan)) return place_workspace(plan, 0);
  const auto product = Product::create(plan.product);
  return place_workspace(plan, product.ok() ? product.value()->scratchpad_bytes() : 0);
}

// ---- finishing rows ----

// Bias and activation in fp32, on values that stay in L1. relu(NaN) is NaN and relu(-0) is +0: the
// comparison, unlike a maximum, says so.
void finish_values(float* values, const float* bias, bool relu, int64_t n) {
  const auto positive = [](float v) { return !(v <= 0) ? v : 0.0f; };
  if (bias != nullptr && relu) {
    for (int64_t i = 0; i < n; ++i) values[i] = positive(values[i] + bias[i]);
  } else if (bias != nullptr) {
    for (int64_t i = 0; i < n; ++i) values[i] += bias[i];
  } else if (relu) {
    for (int64_t i = 0; i < n; ++i) values[i] = positive(values[i]);
  }
}

// `acc` (zeros where null) to y. `acc` may be y itself.
void finish_chunk(const float* acc, const float* bias, bool relu, int64_t n, void* y, DType dtype,
                  int64_t stride) {
  float buffer[kChunk];
  float* values = dtype == DType::kF32 && stride == 1 ? static_cast<float*>(y) : buffer;
  if (acc == nullptr) {
    std::fill_n(values, n, 0.0f);
  } else if (acc != values) {
    std::memcpy(values, acc, static_cast<size_t>(n) * sizeof(float));
  }
  finish_values(values, bias, relu, n);
  if (values == buffer) narrow(buffer, n, y, dtype, stride);
}

// ---- the prepared op ----

struct AlignedDelete {
  void operator()(void* p) const { operator delete (p, std::align_val_t{kAlignment}); }
};
using AlignedBuffer = std::unique_ptr<void, AlignedDelete>;

AlignedBuffer allocate(int64_t bytes) {
  return AlignedBuffer(operator new (static_cast<size_t>(bytes), std::align_val_t{kAlignment}));
}

class LinearOneDnn final : public PreparedOp {
 public:
  LinearOneDnn(const Problem& p, const Buffers& buffers, const Plan& plan,
               std::unique_ptr<Product> product)
      : plan_(plan),
        product_(std::move(product)),
        x_(view_of(p.inputs[0], buffers.inputs[0])),
        w_(view_of(p.inputs[1], buffers.inputs[1])),
        y_(view_of(p.outputs[0], buffers.outputs[0])),
        x_rows_(rows_of(x_)),
        y_rows_(rows_of(y_)),
        w_strides_(weight_strides(p)),
        workspace_(static_cast<char*>(buffers.workspace)) {
    if (has_bias(p)) bias_ = view_of(p.inputs[2], buffers.inputs[2]);
  }

  // What constant inputs allow to be done once.
  Status prepare() {
    const auto [m, n, k] = plan_.size;
    ready_bias_ = static_cast<const float*>(bias_.data);
    if (plan_.pack_bias) {
      if (plan_.constant_bias) owned_bias_ = allocate(n * 4);
      float* to = plan_.constant_bias ? static_cast<float*>(owned_bias_.get())
                                      : workspace<float>(plan_.bias_at);
      if (plan_.constant_bias) widen(bias_.data, bias_.dtype, bias_.strides[0], n, to);
      ready_bias_ = to;
    }
    if (!product_) return Ok{};

    const float* w = static_cast<const float*>(w_.data);
    if (plan_.w.pack) {
      if (plan_.constant_w) owned_w_ = allocate(k * n * 4);
      float* to =
          plan_.constant_w ? static_cast<float*>(owned_w_.get()) : workspace<float>(plan_.w_at);
      if (plan_.constant_w) pack_w(to);
      w = to;
    }
    ready_w_ = w;
    if (product_->packed_b_bytes() > 0) {
      AlignedBuffer packed = allocate(product_->packed_b_bytes());
      ME_RETURN_IF_ERROR(product_->pack_b(w, packed.get()));
      owned_w_ = std::move(packed);
      ready_w_ = owned_w_.get();
    }
    return Ok{};
  }

  void enqueue(void*) override {
    if (plan_.pack_bias && !plan_.constant_bias) {
      widen(bias_.data, bias_.dtype, bias_.strides[0], plan_.size.n,
            workspace<float>(plan_.bias_at));
    }
    if (product_ && plan_.w.pack && !plan_.constant_w) pack_w(workspace<float>(plan_.w_at));
    for (int64_t i = 0; i < plan_.blocks; ++i) {
      const int64_t row = std::min(i * plan_.block, plan_.size.m - plan_.block);
      const float* acc = product_ ? multiply(row) : nullptr;
      if (plan_.finish) finish(row, acc);
    }
  }

 private:
  template <class T>
  T* workspace(int64_t at) const {
    return reinterpret_cast<T*>(workspace_ + at);
  }

  void pack_w(float* to) const {
    const int64_t n = plan_.size.n;
    const int64_t k = plan_.size.k;
    if (plan_.w.by_columns) {
      pack_lines(
          w_.data, w_.dtype, n, k, w_strides_.k, [&](int64_t i) { return i * w_strides_.n; }, to,
          plan_.threads);
    } else {
      pack_lines(
          w_.data, w_.dtype, k, n, w_strides_.n, [&](int64_t i) { return i * w_strides_.k; }, to,
          plan_.threads);
    }
  }

  // Rows [first, first + block) of X, packed where they must be.
  const float* rows_of_x(int64_t first) const {
    const int64_t at = x_rows_.offset(first);
    if (!plan_.x.pack) return static_cast<const float*>(x_.data) + at;
    float* to = workspace<float>(plan_.x_at);
    const int64_t k = plan_.size.k;
    if (plan_.x.by_columns) {
      // One stride leads through all rows.
      const int64_t row_stride = *merged_row_stride(x_rows_);
      pack_lines(
          element(x_.data, x_.dtype, at), x_.dtype, k, plan_.block, row_stride,
          [&](int64_t i) { return i * x_rows_.stride; }, to, plan_.threads);
    } else {
      pack_lines(
          x_.data, x_.dtype, plan_.block, k, x_rows_.stride,
          [&](int64_t i) { return x_rows_.offset(first + i); }, to, plan_.threads);
    }
    return to;
  }

  // The product of one block; returns its accumulator [block, N].
  const float* multiply(int64_t first) const {
    float* acc = plan_.in_place ? static_cast<float*>(y_.data) + first * plan_.product.c_row
                                : workspace<float>(plan_.acc_at);
    product_->run(rows_of_x(first), ready_w_, ready_bias_, acc,
                  workspace<void>(plan_.scratchpad_at));
    return acc;
  }

  void finish(int64_t first, const float* acc) const {
    const int64_t n = plan_.size.n;
    const int64_t chunks = (n + kChunk - 1) / kChunk;
    const int threads = threads_for(plan_.block * n, plan_.threads);
    parallel_for(threads, plan_.block * chunks, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / chunks;
        const int64_t column = i % chunks * kChunk;
        const float* from = acc == nullptr ? nullptr : acc + row * plan_.product.c_row + column;
        const int64_t at = y_rows_.offset(first + row) + column * y_rows_.stride;
        finish_chunk(from, ready_bias_ == nullptr ? nullptr : ready_bias_ + column, plan_.relu,
                     std::min(kChunk, n - column), element(y_.data, y_.dtype, at), y_.dtype,
                     y_rows_.stride);
      }
    });
  }

  Plan plan_;
  std::unique_ptr<Product> product_;  // null where K is 0
  TensorView x_, w_, y_;
  TensorView bias_;  // no data where there is none
  Rows x_rows_, y_rows_;
  WeightStrides w_strides_;
  char* workspace_;
  AlignedBuffer owned_w_, owned_bias_;
  const void* ready_w_ = nullptr;      // as the product takes it
  const float* ready_bias_ = nullptr;  // fp32 [N], or null
};

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  if (is_empty(p)) return make_prepared([](void*) {});
  Plan plan = make_plan(p);
  std::unique_ptr<Product> product;
  if (has_product(plan)) {
    ME_ASSIGN_OR_RETURN(product, Product::create(plan.product));
    place_workspace(plan, product->scratchpad_bytes());
  } else {
    place_workspace(plan, 0);
  }
  auto op = std::make_unique<LinearOneDnn>(p, buffers, plan, std::move(product));
  ME_RETURN_IF_ERROR(op->prepare());
  return std::unique_ptr<PreparedOp>(std::move(op));
}

}  // namespace

extern const KernelEntry linear_cpu_onednn;
const KernelEntry linear_cpu_onednn = {
    .op = "linear",
    .name = "linear_cpu_onednn",
    .backend = Backend::kCpu,
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
};

}  // namespace me
