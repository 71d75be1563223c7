// Which keys a query sees, and what that means for tiles of queries and keys. Host and device share
// it, so that a machine without a GPU tests the arithmetic that every attention kernel runs on.
#pragma once

#include <cstdint>

#include "ops/base/host_device.h"

namespace me {

// Query i sees the first visible_keys(i) keys: all of them, or those with j <= i + offset.
// That number never falls as i grows, which is what the tile functions rest on.
struct KeyMask {
  int64_t kv_len = 0;
  bool causal = false;
  int64_t offset = 0;

  ME_HD constexpr int64_t visible_keys(int64_t query) const {
    if (!causal) return kv_len;
    const int64_t n = query + offset + 1;
    return n < 0 ? 0 : n < kv_len ? n : kv_len;
  }

  // Key tiles of `tile_keys` keys that the queries before `query_end` need: the first so many. The
  // others lie wholly in the future of every query (or past the last key) and are never computed.
  // Requires query_end >= 1.
  ME_HD constexpr int64_t key_tiles(int64_t query_end, int64_t tile_keys) const {
    return (visible_keys(query_end - 1) + tile_keys - 1) / tile_keys;
  }

  // How many of them need no mask for the queries from `query_begin` on: each query sees every key
  // of the first so many tiles. The rest cross the diagonal or the end of the keys.
  ME_HD constexpr int64_t full_key_tiles(int64_t query_begin, int64_t tile_keys) const {
    return visible_keys(query_begin) / tile_keys;
  }

  // Σ visible_keys(i) over the queries i < q_len; a double, since it may pass 2^63.
  ME_HD constexpr double visible_pairs(int64_t q_len) const {
    if (!causal) return static_cast<double>(q_len) * static_cast<double>(kv_len);
    // Queries before `first` see nothing, those from `full` on see everything, and between them
    // each sees one key more than the one before.
    const int64_t first = clamp(-offset, q_len);
    const int64_t full = clamp(kv_len - offset - 1, q_len);
    const double ramp = static_cast<double>(full > first ? full - first : 0);
    const double lowest = static_cast<double>(visible_keys(first));
    return ramp * lowest + ramp * (ramp - 1) / 2 +
           static_cast<double>(q_len - (full > first ? full : first)) * static_cast<double>(kv_len);
  }

 private:
  ME_HD static constexpr int64_t clamp(int64_t query, int64_t q_len) {
    return query < 0 ? 0 : query < q_len ? query : q_len;
  }
};

}  // namespace me
