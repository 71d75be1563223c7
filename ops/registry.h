// Every op and every kernel of the library.
#pragma once

#include <span>
#include <string_view>

#include "ops/base/kernel.h"

namespace me {

std::span<const OpDef* const> ops();

// The op whose field in Node.op is `name`, or null.
const OpDef* find_op(std::string_view name);

// In order of preference where costs tie.
std::span<const KernelEntry* const> kernels();

// The kernel called `name`, or null.
const KernelEntry* find_kernel(std::string_view name);

// A kernel that this build was made without.
struct LeftOutKernel {
  std::string_view op;
  std::string_view name;
  std::string_view needs;  // what to install
};

std::span<const LeftOutKernel> left_out_kernels();

}  // namespace me
