#pragma once

#include <vector>

#include "ops/softmax/normalizer.h"

namespace me::testing {

// merge(a[i], b[i]) computed on the current CUDA device.
std::vector<Normalizer> merge_on_device(const std::vector<Normalizer>& a,
                                        const std::vector<Normalizer>& b);

}  // namespace me::testing
