// Which part of a large case is held against the FP64 oracle.
#pragma once

#include <memory>
#include <vector>

#include "ops/base/op.h"

namespace me::bench {

// A smaller problem of the same op: parts of the inputs that give exactly a part of the output.
struct Sample {
  std::shared_ptr<const Attrs> attrs;  // null: those of the whole
  std::vector<ViewPlacement> inputs;   // one for each input, inside it
  ViewPlacement output;
};

// Samples that together cost a fraction of a second, small problems wholly: rows and columns of a
// product, single queries of attention, rows of softmax and of sums. They are spread evenly by an
// odd step, so that they fall on all places of a kernel's tiles, and the last row is among them.
std::vector<Sample> samples_of(const Problem& problem);

}  // namespace me::bench
