#include <cmath>

#include "ops/add/add.h"

namespace me {

std::vector<OracleOutput> add_oracle(const Problem&, std::span<const F64Tensor> inputs) {
  OracleOutput y{{inputs[0].shape, inputs[0].data}, {}};
  for (size_t i = 0; i < y.value.data.size(); ++i) {
    y.value.data[i] += inputs[1].data[i];
    // One fp32 addition before the rounding to the output type.
    y.bound.push_back(0x1p-24 * std::abs(y.value.data[i]));
  }
  return {y};
}

}  // namespace me
