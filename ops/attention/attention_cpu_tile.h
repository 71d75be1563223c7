// The inner part of attention_cpu_streaming: one tile of query rows against a run of key tiles.
#pragma once

#include <cstdint>

#include "ops/base/dtype.h"

namespace me {

// Row lengths of the scratch matrices are multiples of this, the widest vector (64 bytes), so that
// vector loops over them have no tail.
constexpr int64_t kRowPad = 16;
constexpr int64_t padded(int64_t n) { return (n + kRowPad - 1) / kRowPad * kRowPad; }

constexpr int64_t kTileKeys = 128;  // keys in a tile; a multiple of kRowPad
constexpr int64_t kBlockRows = 6;   // query rows that the micro-kernels hold in registers

// A matrix as it lies in the caller's tensor.
struct StridedMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0;
  int64_t inner_stride = 1;
};

struct TileArgs {
  StridedMatrix k;  // [kv_len, head_dim]
  StridedMatrix v;  // [kv_len, value_dim]
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  int64_t rows = 0;                  // query rows in this tile, >= 1
  const int64_t* visible = nullptr;  // [rows] keys that a row sees; never falls from row to row
  int64_t key_begin = 0;             // keys to visit, as far as the rows see them
  int64_t key_end = 0;

  // All fp32, rows aligned to 64 bytes.
  const float* q = nullptr;  // [rows, padded(head_dim)] times the scale, zero in the padding
  float* row_max = nullptr;  // [rows] out: m
  float* row_sum = nullptr;  // [rows] out: l
  float* acc = nullptr;      // [rows, padded(value_dim)] out: a = Σ exp(s - m)·v
  float* k_tile = nullptr;   // scratch [padded(head_dim), kTileKeys]
  float* v_tile = nullptr;   // scratch [kTileKeys, padded(value_dim)]
  float* scores = nullptr;   // scratch [kBlockRows, kTileKeys]
};

// Computes (m, l, a) of each row over the keys it sees of [key_begin, key_end).
void attend_tile(const TileArgs& args);

}  // namespace me
