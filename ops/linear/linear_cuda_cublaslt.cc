// linear_cuda_cublaslt, linear_cuda_cublaslt_first: Y = act(X·W + b) by cuBLASLt, the baseline of
// this project's own kernels. One product with a fused epilogue: ops/linear/linear_cublaslt.h says
// which.
//
//   linear_cuda_cublaslt        the fastest of all algorithms that the library's heuristics name,
//                               measured when preparing
//   linear_cuda_cublaslt_first  the one they put first, unmeasured, as most programs use it
//
// Numerics: fp32 accumulators, true fp32 products for fp32 inputs unless the model allows TF32.
// Only algorithms that add the parts of a split K in fp32 are asked for, so that the result is
// rounded once. ReLU and special values are as the library has them: its ReLU may make 0 of a NaN.
//
// What is refused, before any call: K = 0, operands with no stride of 1 or with rows that overlap
// (stride 0 included), rows of X or Y that no one stride leads through, a Y that is not row-major,
// a bias that is strided, aligned to less than 16 bytes or narrower than Y. The library itself
// refuses element types: those of X and W, Y and the bias go together only as its manual lists
// them.
#include <algorithm>

#include "ops/base/kernel.h"
#include "ops/cuda/cublaslt.h"
#include "ops/linear/linear_cublaslt.h"

namespace me {
namespace {

bool is_empty(const Problem& p) { return p.outputs[0].count() == 0; }

// A launch, and arithmetic or traffic at the rates of an H200.
double estimate_us(const Problem& p) {
  const Work work = p.op->work(p);
  const double flops_per_us = p.inputs[0].dtype == DType::kF32 ? 0.35e6 : 5e6;
  const double multiprocessors = std::max(1, p.device.multiprocessors);
  return 2.5 + std::max(work.flops / (flops_per_us * multiprocessors), work.bytes / 4e6);
}

template <LtPick kPick>
Support supports(const Problem& p) {
  if (is_empty(p)) return Support::yes(0, "nothing to compute, nothing is launched");
  const auto product = linear_lt_product(p);
  if (!product.ok()) return Support::no(product.error().message);
  const auto offer = lt_offer(product.value(), kPick);
  if (!offer.ok()) return Support::no(offer.error().message);
  return Support::yes(estimate_us(p), offer.value().text);
}

template <LtPick kPick>
int64_t workspace_bytes(const Problem& p) {
  if (is_empty(p)) return 0;
  const auto product = linear_lt_product(p);
  if (!product.ok()) return 0;
  const auto offer = lt_offer(product.value(), kPick);
  return offer.ok() ? offer.value().workspace_bytes : 0;
}

template <LtPick kPick>
Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  if (is_empty(p)) return make_prepared([](void*) {});
  ME_ASSIGN_OR_RETURN(const LtProduct product, linear_lt_product(p));
  const LtMatmul::Pointers at{buffers.inputs[1], buffers.inputs[0], buffers.outputs[0]};
  const void* const bias = has_bias(p) ? buffers.inputs[2] : nullptr;
  ME_ASSIGN_OR_RETURN(LtMatmul matmul,
                      LtMatmul::prepare(product, kPick, 1, bias, at, buffers.workspace));
  return make_prepared(
      [at, matmul = std::move(matmul)](void* stream) { matmul.enqueue(at, stream); });
}

template <LtPick kPick>
constexpr KernelEntry entry(std::string_view name) {
  return {.op = "linear",
          .name = name,
          .backend = Backend::kCuda,
          .baseline = true,
          .supports = supports<kPick>,
          .workspace_bytes = workspace_bytes<kPick>,
          .prepare = prepare<kPick>};
}

}  // namespace

extern const KernelEntry linear_cuda_cublaslt;
const KernelEntry linear_cuda_cublaslt = entry<LtPick::kTuned>("linear_cuda_cublaslt");
extern const KernelEntry linear_cuda_cublaslt_first;
const KernelEntry linear_cuda_cublaslt_first = entry<LtPick::kFirst>("linear_cuda_cublaslt_first");

}  // namespace me
