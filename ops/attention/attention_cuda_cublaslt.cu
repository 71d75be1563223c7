// attention_cuda_cublaslt, attention_cuda_cublaslt_first: attention as a user of cuBLASLt builds
// it, the baseline of this project's streaming kernels.
//
//   Q·Kᵀ ─► S [batch, heads, q_len, scores_ld] ─► masked softmax, in place ─► P·V ─► O
//   cuBLASLt     in the workspace                 the kernel below        cuBLASLt
//
// ops/attention/attention_cublaslt.h says how the products are batched. The first row of the
// registry takes the fastest algorithm for each product, measured when preparing; the other one
// takes what the library's heuristics put first.
//
// The softmax. A row of S is read once, into registers, and written once: by a warp up to 1024
// 16-bit scores, by a block of 256 or 1024 threads beyond that, 16 bytes to a thread and access.
//
//   thread t, vector v:  scores (v·kRowThreads + t)·kWide .. + kWide - 1
//
// Rows past 32768 16-bit scores are reread instead, out of L2 mostly. Keys that a query may not see
// are not read and become 0, so that P·V needs no mask; a row that sees none is all 0. Scores from
// kv_len on are padding that the products do not touch; they become 0 too.
//
// Numerics: the products accumulate in fp32; S and P are rounded to the inputs' type, which a
// streaming kernel does to P at most. Maximum, sum and exponential in fp32. A key that a query may
// not see enters P·V with weight 0, so that a NaN or infinity of its value gives NaN.
//
// Both products compute every pair of query and key, those that a causal mask hides included.
//
// What is refused, before any call: kv_len = 0, heads whose matrices have no stride of 1 or rows
// that overlap, an output that is not contiguous along its last axis, more than 64 launches of a
// product, scores of more than a quarter of the device's memory.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/attention/attention_cublaslt.h"
#include "ops/base/kernel.h"
#include "ops/cuda/cublaslt.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"

namespace me {
namespace {

// ---- softmax of the scores ----

struct SoftmaxParams {
  void* scores;  // [rows, ld], in place
  int64_t rows;
  int64_t q_len;
  int ld;  // a multiple of 16 bytes
  KeyMask mask;
};

constexpr int kWarpRowThreads = 256;  // of a block whose warps have a row each
constexpr float kLog2E = 1.44269504f;

__device__ float exp_above(float x, float max) { return exp2_approx((x - max) * kLog2E); }

struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// The reduction over kThreads neighbouring threads, a warp or the block, the same in all of them.
// `shared` has a place for each warp; two reductions after another need different ones.
template <int kThreads, class Op>
__device__ float reduce(float value, Op op, float* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  }
  if constexpr (kThreads > 32) {
    constexpr int kWarps = kThreads / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = shared[lane % kWarps];
#pragma unroll
    for (int step = kWarps / 2; step > 0; step /= 2) {
      value = op(value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
    }
  }
  return value;
}

// Keys that the row's query sees, as a number of scores.
__device__ int visible_scores(const SoftmaxParams& p, int64_t row) {
  return static_cast<int>(p.mask.visible_keys(row % p.q_len));
}

// The maximum is that of what compares: a NaN among the scores makes the sum NaN, and so the row.
template <class T, int kRowThreads, int kVectors>
__global__ void __launch_bounds__(kRowThreads == 32 ? kWarpRowThreads : kRowThreads)
    softmax_rows(const SoftmaxParams p) {
  using Wide = Vector<T>;
  constexpr int kRows = kRowThreads == 32 ? kWarpRowThreads / 32 : 1;
  __shared__ float shared[2][32];
  const int thread = static_cast<int>(threadIdx.x) % kRowThreads;
  const int64_t row = int64_t{blockIdx.x} * kRows + static_cast<int>(threadIdx.x) / kRowThreads;
  if (row >= p.rows) return;  // a whole warp, and only where nobody waits for it
  T* const scores = static_cast<T*>(p.scores) + row * p.ld;
  const int n = visible_scores(p, row);

  Wide x[kVectors];
  float max = -INFINITY;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * kRowThreads + thread) * Wide::kSize;
    if (at < n) x[v] = *reinterpret_cast<const Wide*>(scores + at);
#pragma unroll
    for (int j = 0; j < Wide::kSize; ++j) {
      if (at + j < n) max = fmaxf(max, to_f32(x[v].at[j]));
    }
  }
  max = reduce<kRowThreads>(max, Max(), shared[0]);

  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * kRowThreads + thread) * Wide::kSize;
#pragma unroll
    for (int j = 0; j < Wide::kSize; ++j) {
      if (at + j < n) sum += exp_above(to_f32(x[v].at[j]), max);
    }
  }
  sum = reduce<kRowThreads>(sum, Sum(), shared[1]);
  const float inverse = 1.0f / sum;

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int at = (v * kRowThreads + thread) * Wide::kSize;
    if (at >= p.ld) break;
    Wide y;
#pragma unroll
    for (int j = 0; j < Wide::kSize; ++j) {
      y.at[j] = from_f32<T>(at + j < n ? exp_above(to_f32(x[v].at[j]), max) * inverse : 0.0f);
    }
    *reinterpret_cast<Wide*>(scores + at) = y;
  }
}

constexpr int kLongThreads = 1024;

// A block to a row of any length, which it reads three times.
template <class T>
__global__ void __launch_bounds__(kLongThreads) softmax_long_rows(const SoftmaxParams p) {
  using Wide = Vector<T>;
  __shared__ float shared[2][32];
  T* const scores = static_cast<T*>(p.scores) + int64_t{blockIdx.x} * p.ld;
  const int n = visible_scores(p, blockIdx.x);
  const int64_t first = int64_t{threadIdx.x} * Wide::kSize;
  constexpr int64_t kStep = int64_t{kLongThreads} * Wide::kSize;

  float max = -INFINITY;
  for (int64_t at = first; at < n; at += kStep) {
    const Wide x = *reinterpret_cast<const Wide*>(scores + at);
#pragma unroll
    for (int j = 0; j < Wide::kSize; ++j) {
      if (at + j < n) max = fmaxf(max, to_f32(x.at[j]));
    }
  }
  max = reduce<kLongThreads>(max, Max(), shared[0]);

  float sum = 0.0f;
  for (int64_t at = first; at < n; at += kStep) {
    const Wide x = *reinterpret_cast<const Wide*>(scores + at);
#pragma unroll
    for (int j = 0; j < Wide::kSize; ++j) {
      if (at + j < n) sum += exp_above(to_f32(x.at[j]), max);
    }
  }
  sum = reduce<kLongThreads>(sum, Sum(), shared[1]);
  const float inverse = 1.0f / sum;

  for (int64_t at = first; at < p.ld; at += kStep) {
    Wide y = *reinterpret_cast<const Wide*>(scores + at);
#pragma unroll
    for (int j = 0; j < Wide::kSize; ++j) {
      y.at[j] = from_f32<T>(at + j < n ? exp_above(to_f32(y.at[j]), max) * inverse : 0.0f);
    }
    *reinterpret_cast<Wide*>(scores + at) = y;
  }
}

// ---- host ----

struct SoftmaxLaunch {
  void (*kernel)(SoftmaxParams) = nullptr;
  int threads = 0;
  int rows = 1;  // to a block
};

// The first kernel whose registers hold a row of `ld` scores.
template <class T>
SoftmaxLaunch softmax_launch(int64_t ld) {
  const int64_t wides = ld / Vector<T>::kSize;
  const auto warp = [](auto* kernel) {
    return SoftmaxLaunch{kernel, kWarpRowThreads, kWarpRowThreads / 32};
  };
  if (wides <= 32) return warp(softmax_rows<T, 32, 1>);
  if (wides <= 64) return warp(softmax_rows<T, 32, 2>);
  if (wides <= 128) return warp(softmax_rows<T, 32, 4>);
  if (wides <= 256) return {softmax_rows<T, 256, 1>, 256};
  if (wides <= 512) return {softmax_rows<T, 256, 2>, 256};
  if (wides <= 1024) return {softmax_rows<T, 256, 4>, 256};
  if (wides <= 2048) return {softmax_rows<T, 256, 8>, 256};
  if (wides <= 4096) return {softmax_rows<T, 1024, 4>, 1024};
  return {softmax_long_rows<T>, kLongThreads};
}

bool is_empty(const Problem& p) { return p.outputs[0].count() == 0; }

// Two products of all pairs, masked or not, and S written, read, written and read.
double estimate_us(const Problem& p, const AttentionLtPlan& plan) {
  const AttentionSizes& s = plan.sizes;
  const double pairs = static_cast<double>(plan.scores_rows) * static_cast<double>(s.kv_len);
  const double flops = 2 * pairs * static_cast<double>(s.head_dim + s.value_dim);
  const double flops_per_us = p.inputs[0].dtype == DType::kF32 ? 0.35e6 : 4e6;
  const double multiprocessors = std::max(1, p.device.multiprocessors);
  const double launches = static_cast<double>(plan.scores.at.size() + plan.values.at.size() + 1);
  return 2.5 * launches + flops / (flops_per_us * multiprocessors) +
         (4 * static_cast<double>(plan.scores_bytes) + p.op->work(p).bytes) / 4e6;
}

// What both products take beside the scores; they run one after the other.
template <LtPick kPick>
Result<int64_t> product_workspace(const AttentionLtPlan& plan) {
  ME_ASSIGN_OR_RETURN(const LtOffer scores, lt_offer(plan.scores.product, kPick));
  ME_ASSIGN_OR_RETURN(const LtOffer values, lt_offer(plan.values.product, kPick));
  return std::max(scores.workspace_bytes, values.workspace_bytes);
}

// Where that starts.
int64_t after_scores(const AttentionLtPlan& plan) {
  return (plan.scores_bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

template <LtPick kPick>
Support supports(const Problem& p) {
  if (is_empty(p)) return Support::yes(0, "nothing to compute, nothing is launched");
  const auto plan = attention_lt_plan(p);
  if (!plan.ok()) return Support::no(plan.error().message);
  const auto scores = lt_offer(plan.value().scores.product, kPick);
  if (!scores.ok()) return Support::no("the scores: " + scores.error().message);
  const auto values = lt_offer(plan.value().values.product, kPick);
  if (!values.ok()) return Support::no("their product with v: " + values.error().message);
  const auto launches = [](const LtLaunches& l) {
    return std::to_string(l.at.size()) + (l.at.size() == 1 ? " launch" : " launches");
  };
  return Support::yes(estimate_us(p, plan.value()),
                      "scores of " + std::to_string(plan.value().scores_bytes) + " bytes in " +
                          launches(plan.value().scores) + " (" + scores.value().text +
                          "), softmax, their product with v in " + launches(plan.value().values) +
                          " (" + values.value().text + ")");
}

template <LtPick kPick>
int64_t workspace_bytes(const Problem& p) {
  if (is_empty(p)) return 0;
  const auto plan = attention_lt_plan(p);
  if (!plan.ok()) return 0;
  const auto products = product_workspace<kPick>(plan.value());
  return products.ok() ? after_scores(plan.value()) + products.value() : 0;
}

std::vector<LtMatmul::Pointers> pointers_of(const LtLaunches& launches, DType dtype, const void* a,
                                            const void* b, void* d) {
  const int64_t item = size_of(dtype);
  std::vector<LtMatmul::Pointers> out;
  for (const LtLaunches::Offsets& at : launches.at) {
    out.push_back({static_cast<const char*>(a) + at.a * item,
                   static_cast<const char*>(b) + at.b * item, static_cast<char*>(d) + at.d * item});
  }
  return out;
}

template <LtPick kPick>
Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  if (is_empty(p)) return make_prepared([](void*) {});
  ME_ASSIGN_OR_RETURN(const AttentionLtPlan plan, attention_lt_plan(p));
  const DType dtype = p.inputs[0].dtype;
  void* const scores = buffers.workspace;
  void* const rest = static_cast<char*>(buffers.workspace) + after_scores(plan);
  auto to_scores = pointers_of(plan.scores, dtype, buffers.inputs[1], buffers.inputs[0], scores);
  auto to_output = pointers_of(plan.values, dtype, buffers.inputs[2], scores, buffers.outputs[0]);
  ME_ASSIGN_OR_RETURN(LtMatmul first, LtMatmul::prepare(plan.scores.product, kPick,
                                                        static_cast<float>(plan.sizes.scale),
                                                        nullptr, to_scores[0], rest));
  ME_ASSIGN_OR_RETURN(LtMatmul second, LtMatmul::prepare(plan.values.product, kPick, 1, nullptr,
                                                         to_output[0], rest));

  const SoftmaxParams params{scores, plan.scores_rows, plan.sizes.q_len,
                             static_cast<int>(plan.scores_ld), plan.sizes.mask};
  const SoftmaxLaunch launch = with_dtype(
      dtype, [&](auto type) { return softmax_launch<CudaElement<type()>>(plan.scores_ld); });
  load_kernel(launch.kernel);
  const auto blocks = static_cast<unsigned>((params.rows + launch.rows - 1) / launch.rows);
  return make_prepared([=, to_scores = std::move(to_scores), to_output = std::move(to_output),
                        first = std::move(first), second = std::move(second)](void* stream) {
    for (const LtMatmul::Pointers& at : to_scores) first.enqueue(at, stream);
    launch.kernel<<<blocks, launch.threads, 0, as_cuda_stream(stream)>>>(params);
    check_launch();
    for (const LtMatmul::Pointers& at : to_output) second.enqueue(at, stream);
  });
}

template <LtPick kPick>
constexpr KernelEntry entry(std::string_view name) {
  return {.op = "attention",
          .name = name,
          .backend = Backend::kCuda,
          .baseline = true,
          .supports = supports<kPick>,
          .workspace_bytes = workspace_bytes<kPick>,
          .prepare = prepare<kPick>};
}

}  // namespace

extern const KernelEntry attention_cuda_cublaslt;
const KernelEntry attention_cuda_cublaslt = entry<LtPick::kTuned>("attention_cuda_cublaslt");
extern const KernelEntry attention_cuda_cublaslt_first;
const KernelEntry attention_cuda_cublaslt_first =
    entry<LtPick::kFirst>("attention_cuda_cublaslt_first");

}  // namespace me
