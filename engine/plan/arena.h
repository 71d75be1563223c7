// One block of memory for everything a run writes: blocks that are never alive together share
// bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace me {

constexpr int64_t kArenaAlignment = 256;  // bytes; what TMA, cache lines and vectors want at most

// Memory that is needed during the steps first..last, both included.
struct ArenaBlock {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct ArenaLayout {
  std::vector<int64_t> offsets;   // per block, multiples of kArenaAlignment
  int64_t bytes = 0;              // size of the arena
  int64_t sum_bytes = 0;          // what it would be without sharing
  int64_t lower_bound_bytes = 0;  // the most that is alive during one step

  bool operator==(const ArenaLayout&) const = default;
};

// Largest blocks first, each at the lowest offset that is free during its whole life; for more than
// a few thousand blocks in order of time instead, which takes time linear in the blocks alive
// together. Nothing where the sum exceeds 2^62 bytes.
std::optional<ArenaLayout> plan_arena(std::span<const ArenaBlock> blocks);

}  // namespace me
