// How the CUDA attention kernels cut a problem into blocks. Host and device share it, so that a
// machine without a GPU tests the arithmetic that every block runs on.
//
// The `group` query heads that share a head of K and V form one matrix of q_len·group rows, row
// query·group + g. A unit is tile_rows of them for one (batch, head of K); a block computes a unit
// over all its key tiles, or over one part of them where the keys are split.
#pragma once

#include <cstdint>

#include "ops/attention/mask.h"
#include "ops/base/host_device.h"

namespace me {

// What one block does.
struct AttentionBlock {
  int64_t unit = 0;
  int64_t split = 0;
  int64_t batch = 0;
  int64_t kv_head = 0;
  int64_t row_begin = 0;
  int64_t query_begin = 0;   // row_begin / group
  uint32_t group_begin = 0;  // row_begin % group
  int64_t tile_begin = 0;    // key tiles
  int64_t tile_end = 0;
  int64_t full_tiles = 0;  // the tiles before this one need no mask
};

struct AttentionRow {
  int64_t query = 0;
  uint32_t g = 0;  // query head within the group
};

struct AttentionGrid {
  KeyMask mask;
  int64_t kv_heads = 0;
  int64_t rows = 0;       // query rows of one head of K
  int64_t row_tiles = 0;  // of one head of K
  int64_t units = 0;      // row tiles, all heads of K together
  int64_t splits = 1;     // parts that each unit's keys are cut into
  uint32_t group = 1;
  int32_t tile_rows = 0;
  int32_t tile_keys = 0;

  ME_HD constexpr int64_t blocks() const { return units * splits; }

  // A head's units run from the last one, which sees the most keys: the short ones fill the gaps
  // at the end. Neighbouring blocks share a head, whose K and V then stay in the L2 cache.
  ME_HD constexpr AttentionBlock block(int64_t index) const {
    AttentionBlock b;
    b.unit = splits == 1 ? index : index / splits;
    b.split = index - b.unit * splits;
    const int64_t head = b.unit / row_tiles;
    b.batch = head / kv_heads;
    b.kv_head = head - b.batch * kv_heads;
    b.row_begin = (row_tiles - 1 - (b.unit - head * row_tiles)) * tile_rows;
    const int64_t row_end = b.row_begin + tile_rows < rows ? b.row_begin + tile_rows : rows;
    b.query_begin = b.row_begin / group;
    b.group_begin = static_cast<uint32_t>(b.row_begin - b.query_begin * group);
    const int64_t tiles = mask.key_tiles((row_end - 1) / group + 1, tile_keys);
    b.tile_begin = splits == 1 ? 0 : tiles * b.split / splits;
    b.tile_end = splits == 1 ? tiles : tiles * (b.split + 1) / splits;
    b.full_tiles = mask.full_key_tiles(b.query_begin, tile_keys);
    return b;
  }

  // Row row_begin + local of a block. Past the last row it names a query that is not there.
  ME_HD constexpr AttentionRow row(const AttentionBlock& b, uint32_t local) const {
    if (group == 1) return {b.query_begin + local, 0};
    const uint32_t n = b.group_begin + local;
    return {b.query_begin + n / group, n % group};
  }

  // How many of the `keys` keys from `first` on row row_begin + local sees.
  ME_HD constexpr int visible(const AttentionBlock& b, uint32_t local, int64_t first,
                              int keys) const {
    const int64_t n = mask.visible_keys(row(b, local).query) - first;
    return n < 0 ? 0 : n < keys ? static_cast<int>(n) : keys;
  }
};

// Groups beyond this would overflow AttentionGrid::row.
constexpr int64_t kMaxAttentionGroup = int64_t{1} << 30;

// `slots`: blocks that the device holds at one time. Where there are so few units that most of it
// would stand idle, keys are split into parts of at least `min_tiles` key tiles.
constexpr AttentionGrid attention_grid(const KeyMask& mask, int64_t heads, int64_t kv_heads,
                                       int64_t group, int64_t q_len, int tile_rows, int tile_keys,
                                       int64_t slots, int64_t min_tiles) {
  AttentionGrid g;
  g.mask = mask;
  g.kv_heads = kv_heads;
  g.rows = q_len * group;
  g.group = static_cast<uint32_t>(group);
  g.tile_rows = tile_rows;
  g.tile_keys = tile_keys;
  if (heads == 0 || g.rows == 0) return g;
  g.row_tiles = (g.rows + tile_rows - 1) / tile_rows;
  g.units = heads * g.row_tiles;
  if (2 * g.units <= slots) {
    const int64_t most = mask.key_tiles(q_len, tile_keys) / min_tiles;
    const int64_t wanted = slots / g.units;
    g.splits = most < 1 ? 1 : wanted < most ? wanted : most;
  }
  return g;
}

}  // namespace me
