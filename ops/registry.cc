#include "ops/registry.h"

#include <array>

#include "ops/add/add.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "ops/softmax/softmax.h"
#include "ops/softmax_grad/softmax_grad.h"
#include "ops/view/view.h"

namespace me {

#define ME_IF_0(...)
#define ME_IF_1(...) __VA_ARGS__
#define ME_UNLESS_0(...) __VA_ARGS__
#define ME_UNLESS_1(...)
#define ME_JOIN(a, b) a##b
#define ME_IF(built, ...) ME_JOIN(ME_IF_, built)(__VA_ARGS__)
#define ME_UNLESS(built, ...) ME_JOIN(ME_UNLESS_, built)(__VA_ARGS__)

#define ME_KERNEL(built, op, name, needs) ME_IF(built, extern const KernelEntry name;)
#include "ops/kernels.inc"
#undef ME_KERNEL

namespace {

constexpr std::array kOps{
    &kLinearOp,  &kAttentionOp, &kSoftmaxOp, &kSoftmaxGradOp, &kAddOp,
    &kReshapeOp, &kTransposeOp, &kSliceOp,   &kBroadcastOp,
};

#define ME_KERNEL(built, op, name, needs) ME_IF(built, &name, )
constexpr const KernelEntry* kKernels[] = {
#include "ops/kernels.inc"
};
#undef ME_KERNEL

// The closing row keeps the array non-empty where nothing is left out.
#define ME_KERNEL(built, op, name, needs) ME_UNLESS(built, {#op, #name, needs}, )
constexpr LeftOutKernel kLeftOut[] = {
#include "ops/kernels.inc"
    {"", "", ""},
};
#undef ME_KERNEL

}  // namespace

std::span<const OpDef* const> ops() { return kOps; }

const OpDef* find_op(std::string_view name) {
  for (const OpDef* op : ops()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

std::span<const KernelEntry* const> kernels() { return kKernels; }

const KernelEntry* find_kernel(std::string_view name) {
  for (const KernelEntry* kernel : kernels()) {
    if (kernel->name == name) return kernel;
  }
  return nullptr;
}

std::span<const LeftOutKernel> left_out_kernels() {
  return std::span(kLeftOut).first(std::size(kLeftOut) - 1);
}

}  // namespace me
