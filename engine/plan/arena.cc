#include "engine/plan/arena.h"

#include <algorithm>
#include <numeric>

namespace me {
namespace {

constexpr size_t kMostBlocksBySize = 4096;  // the order by size compares every pair
constexpr int64_t kMostBytes = int64_t{1} << 62;

bool alive_together(const ArenaBlock& a, const ArenaBlock& b) {
  return a.first <= b.last && b.first <= a.last;
}

// The most bytes alive during one step.
int64_t lower_bound(std::span<const ArenaBlock> blocks, std::span<const int64_t> sizes) {
  std::vector<std::pair<int, int64_t>> changes;  // at a step: bytes that come, or that have gone
  for (size_t i = 0; i < blocks.size(); ++i) {
    changes.emplace_back(blocks[i].first, sizes[i]);
    changes.emplace_back(blocks[i].last + 1, -sizes[i]);
  }
  std::sort(changes.begin(), changes.end());  // at equal steps what goes stands before what comes
  int64_t alive = 0;
  int64_t most = 0;
  for (const auto& [step, bytes] : changes) {
    alive += bytes;
    most = std::max(most, alive);
  }
  return most;
}

}  // namespace

std::optional<ArenaLayout> plan_arena(std::span<const ArenaBlock> blocks) {
  ArenaLayout layout;
  std::vector<int64_t> sizes;
  for (const ArenaBlock& block : blocks) {
    if (block.bytes < 0 || block.bytes > kMostBytes - layout.sum_bytes - kArenaAlignment) {
      return std::nullopt;
    }
    sizes.push_back((block.bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment);
    layout.sum_bytes += sizes.back();
  }
  layout.offsets.assign(blocks.size(), 0);
  layout.lower_bound_bytes = lower_bound(blocks, sizes);

  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const bool by_size = blocks.size() <= kMostBlocksBySize;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return by_size ? sizes[a] > sizes[b] : blocks[a].first < blocks[b].first;
  });

  std::vector<size_t> placed;  // sorted by offset
  for (const size_t i : order) {
    if (sizes[i] == 0) continue;
    if (!by_size) {  // what has died before this block cannot meet a later one either
      std::erase_if(placed, [&](size_t j) { return blocks[j].last < blocks[i].first; });
    }
    int64_t offset = 0;
    for (const size_t j : placed) {
      if (!alive_together(blocks[i], blocks[j])) continue;
      if (offset + sizes[i] <= layout.offsets[j]) break;
      offset = std::max(offset, layout.offsets[j] + sizes[j]);
    }
    layout.offsets[i] = offset;
    layout.bytes = std::max(layout.bytes, offset + sizes[i]);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), i,
                         [&](size_t a, size_t b) { return layout.offsets[a] < layout.offsets[b]; }),
        i);
  }
  return layout;
}

}  // namespace me
