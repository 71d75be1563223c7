// How a long softmax row is cut into chunks, on host and device. Each chunk leaves a partial
// normaliser; a row's partials merge in order; a last pass rereads the logits.
//
// Scratch: one Normalizer per chunk [rows, chunks], then one per row [rows].
#pragma once

#include <cstdint>

#include "ops/base/host_device.h"
#include "ops/softmax/normalizer.h"

namespace me {

constexpr int64_t kSoftmaxChunk = 1024;  // logits

struct SoftmaxSplit {
  int64_t rows = 0;    // M
  int64_t length = 0;  // N
  int64_t chunk = kSoftmaxChunk;

  // T = ceil(N / C)
  ME_HD constexpr int64_t chunks() const { return length / chunk + (length % chunk != 0 ? 1 : 0); }
  // First logit of chunk t, and its number of logits; only the last chunk may be shorter.
  ME_HD constexpr int64_t begin(int64_t t) const { return t * chunk; }
  ME_HD constexpr int64_t size(int64_t t) const {
    return length - begin(t) < chunk ? length - begin(t) : chunk;
  }
  // 8·M·(T + 1)
  ME_HD constexpr int64_t scratch_bytes() const {
    return static_cast<int64_t>(sizeof(Normalizer)) * rows * (chunks() + 1);
  }
};

static_assert(sizeof(Normalizer) == 8);

}  // namespace me
