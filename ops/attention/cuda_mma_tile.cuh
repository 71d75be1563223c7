// The parts of attention_cuda_mma: shared memory's layout and how it is filled, and what a warp
// computes of one key tile. attention_cuda_mma.cu explains the whole.
#pragma once

#include "ops/attention/cuda_parts.cuh"

namespace me {
namespace {

// What the threads of a block would all have to remember, and need now and then only: registers are
// what limits this kernel.
struct SharedBlock {
  AttentionBlock block;
  int tiles;          // of keys
  const uint16_t* k;  // [kv_len, head_dim], the block's head
  const uint16_t* v;  // [kv_len, value_dim]
};

template <int kD_, int kRowWarps_, int kMi_, int kKeyWarps_, int kBN_, int kStages_, int kResident_>
struct Config {
  static constexpr int kD = kD_;                // head_dim and value_dim, padded
  static constexpr int kRowWarps = kRowWarps_;  // along the rows
  static constexpr int kMi = kMi_;              // mma tiles of 16 rows to a warp
  static constexpr int kKeyWarps = kKeyWarps_;  // along the keys of a tile
  static constexpr int kBN = kBN_;
  static constexpr int kStages = kStages_;
  static constexpr int kResident = kResident_;  // blocks on a multiprocessor
  static constexpr int kWarpRows = 16 * kMi;
  static constexpr int kBM = kWarpRows * kRowWarps;
  static constexpr int kWarpKeys = kBN / kKeyWarps;
  static constexpr int kThreads = 32 * kRowWarps * kKeyWarps;
  static constexpr int kChunks = kD / 8;  // of a line
  static constexpr int kLine = kD * 2;    // bytes
  static constexpr int kQBytes = kBM * kLine;
  static constexpr int kTileBytes = kBN * kLine;
  static constexpr int kStageBytes = 2 * kTileBytes;  // K, then V
  static constexpr int kPitch = kD + 8;  // floats of a merged row: 8 rows of 8 bytes in all banks
  static constexpr int kMergeBytes = kKeyWarps > 1 ? kKeyWarps* kBM*(kPitch + 2) *
                                                         static_cast<int>(sizeof(float))
                                                   : 0;
  static constexpr int kBlockOffset = std::max(kQBytes + kStages * kStageBytes, kMergeBytes);
  static constexpr int kSharedBytes = kBlockOffset + 128;  // and a SharedBlock
  static constexpr bool kQInRegisters = kMi == 1 && kD <= 128;
  static constexpr int kTilePasses = kBN * kChunks / kThreads;  // chunks of K a thread copies
  static_assert(kWarpKeys % 16 == 0 && kTilePasses * kThreads == kBN * kChunks);
  static_assert(kRowWarps == 1 || kKeyWarps == 1);
  static_assert(sizeof(SharedBlock) <= kSharedBytes - kBlockOffset);
};

// Byte offset of chunk c of line r.
template <class C>
__device__ constexpr uint32_t swizzled(int r, int c) {
  return static_cast<uint32_t>(r * C::kLine + ((c ^ (r & 7)) << 4));
}

// Added to the magnitudes of a pair, what makes those with all exponent bits set pass 0x8000.
template <class T>
constexpr uint32_t kToSign = std::is_same_v<T, __half> ? 0x04000400u : 0x00800080u;

// The sign bit of each half of `pair` that is NaN or infinite.
template <class T>
__device__ uint32_t special_signs(uint32_t pair) {
  return ((pair & 0x7FFF7FFFu) + kToSign<T>)&0x80008000u;
}
// All bits of those halves.
template <class T>
__device__ uint32_t special_mask(uint32_t pair) {
  return (special_signs<T>(pair) >> 15) * 0xFFFFu;
}

template <class T>
__device__ uint32_t packed(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

// ---- filling shared memory ----

// Eight elements from column 8·c on of a row; those past `columns`, or of no row, are zero.
__device__ inline uint4 gather_chunk(const uint16_t* row, int64_t stride, int c, int columns) {
  uint32_t half[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) half[i] = c * 8 + i < columns ? row[(c * 8 + i) * stride] : 0;
  return make_uint4(half[0] | half[1] << 16, half[2] | half[3] << 16, half[4] | half[5] << 16,
                    half[6] | half[7] << 16);
}

__device__ inline void store_chunk(uint32_t to, const uint4& chunk) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(chunk.x), "r"(chunk.y),
               "r"(chunk.z), "r"(chunk.w)
               : "memory");
}
__device__ inline uint4 load_chunk(uint32_t from) {
  uint4 chunk;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w)
               : "r"(from)
               : "memory");
  return chunk;
}

// Bytes of chunk c that lie before column `columns`.
__device__ inline int chunk_bytes(int c, int columns) {
  return min(max(columns - c * 8, 0), 8) * 2;
}

// Which chunk of a tile is a thread's i-th: number threadIdx.x + i·kThreads, along the tile's lines
// first, or along its columns where (strided) the keys lie closer together than the elements of
// one.
template <class C>
struct TileChunks {
  bool along_keys;

  __device__ TileChunks(const AttentionParams& p, const AttentionOperand& x)
      : along_keys(!p.async && x.stride_row < x.stride_inner) {}
  __device__ int index(int i) const { return static_cast<int>(threadIdx.x) + i * C::kThreads; }
  __device__ int line(int i) const {
    return along_keys ? index(i) % C::kBN : index(i) / C::kChunks;
  }
  __device__ int chunk(int i) const {
    return along_keys ? index(i) / C::kBN : index(i) % C::kChunks;
  }
};

// Copies the tile of `left` keys, or of BN if there are more, from key `first` of a head of K or V
// on. `to`: its lines.
template <class C>
__device__ void copy_tile(const AttentionParams& p, const AttentionOperand& x, const uint16_t* head,
                          int columns, int64_t first, int left, uint32_t to) {
  if (p.async) {
    constexpr int kLines = C::kThreads / C::kChunks;  // between a thread's chunks
    static_assert(kLines * C::kChunks == C::kThreads);
    const int line = static_cast<int>(threadIdx.x) / C::kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % C::kChunks;
    const uint16_t* from = head + (first + line) * x.stride_row + chunk * 8;
    const int bytes = chunk_bytes(chunk, columns);
    const bool whole = bytes == 16;
    if (whole || bytes == 0) {
#pragma unroll
      for (int i = 0; i < C::kTilePasses; ++i) {
        const int r = line + i * kLines;
        cp_async_16(to + swizzled<C>(r, chunk), from, whole && r < left);
        from += kLines * x.stride_row;
      }
    } else {  // the end of a row whose length 8 does not divide
#pragma unroll 1
      for (int i = 0; i < C::kTilePasses; ++i) {
        const int r = line + i * kLines;
        cp_async_up_to_16(to + swizzled<C>(r, chunk), from, r < left ? bytes : 0);
        from += kLines * x.stride_row;
      }
    }
  } else {
    const TileChunks<C> chunks(p, x);
#pragma unroll 1
    for (int i = 0; i < C::kTilePasses; ++i) {
      const int r = chunks.line(i);
      store_chunk(to + swizzled<C>(r, chunks.chunk(i)),
                  gather_chunk(head + (first + r) * x.stride_row, x.stride_inner, chunks.chunk(i),
                               r < left ? columns : 0));
    }
  }
}

// Whether the thread's own chunks of a tile that it copied (and waited for) hold NaN or infinity.
template <class C, class T>
__device__ bool any_special(const AttentionParams& p, const AttentionOperand& x, uint32_t tile) {
  const TileChunks<C> chunks(p, x);
  uint32_t signs = 0;
#pragma unroll 2
  for (int i = 0; i < C::kTilePasses; ++i) {
    const uint4 at = load_chunk(tile + swizzled<C>(chunks.line(i), chunks.chunk(i)));
    signs |= special_signs<T>(at.x) | special_signs<T>(at.y) | special_signs<T>(at.z) |
             special_signs<T>(at.w);
  }
  return signs != 0;
}

// The block's query rows. With a negative scale their signs are turned, each chunk by the thread
// that copied it.
template <class C>
__device__ void copy_queries(const AttentionParams& p, const AttentionBlock& b, uint32_t to) {
  constexpr int kTotal = C::kBM * C::kChunks;
  for (int i = static_cast<int>(threadIdx.x); i < kTotal; i += C::kThreads) {
    const int r = i / C::kChunks;
    const int c = i % C::kChunks;
    const bool inside = b.row_begin + r < p.grid.rows;
    const AttentionRow row = p.grid.row(b, static_cast<uint32_t>(inside ? r : 0));
    const auto* from = row_of<const uint16_t>(p, p.q, b, row);
    const int columns = inside ? p.head_dim : 0;
    if (p.async) {
      cp_async_up_to_16(to + swizzled<C>(r, c), from + c * 8, chunk_bytes(c, columns));
    } else {
      store_chunk(to + swizzled<C>(r, c), gather_chunk(from, p.q.stride_inner, c, columns));
    }
  }
  if (!p.negate) return;
  cp_async_commit();
  cp_async_wait<0>();
  for (int i = static_cast<int>(threadIdx.x); i < kTotal; i += C::kThreads) {
    const uint32_t at = to + swizzled<C>(i / C::kChunks, i % C::kChunks);
    uint4 x = load_chunk(at);
    x.x ^= 0x80008000u, x.y ^= 0x80008000u, x.z ^= 0x80008000u, x.w ^= 0x80008000u;
    store_chunk(at, x);
  }
}

// ---- one warp, one tile ----

// In every accumulator [4]: rows lane / 4 (elements 0, 1) and 8 below (2, 3), columns
// 2·(lane % 4) and the next of each 8.
template <class C, class T>
struct Warp {
  float acc[C::kMi][C::kD / 8][4] = {};
  float row_max[C::kMi][2];
  float row_sum[C::kMi][2] = {};  // of the thread's own columns; the quad's are added at the end
  uint32_t q_registers[C::kQInRegisters ? C::kD / 16 : 1][4];
  uint32_t q_lane;          // where the lane's ldmatrix addresses start
  uint32_t k_lane, v_lane;  // and within a stage

  __device__ explicit Warp(uint32_t q) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Q: (rows 0-7, d 0-7), (rows 8-15, d 0-7), (rows 0-7, d 8-15), (rows 8-15, d 8-15).
    q_lane = q + swizzled<C>(first_row() + lane % 16, lane / 16);
    // K: (keys 0-7, d 0-7), (keys 0-7, d 8-15), (keys 8-15, d 0-7), (keys 8-15, d 8-15).
    k_lane = swizzled<C>(first_key() + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    // V, transposed: (keys 0-7, d 0-7), (keys 8-15, d 0-7), (keys 0-7, d 8-15), (8-15, 8-15).
    v_lane = C::kTileBytes + swizzled<C>(first_key() + lane % 16, lane / 16);
#pragma unroll
    for (int i = 0; i < C::kMi; ++i) row_max[i][0] = row_max[i][1] = kMinusInfinity;
  }

  // Of the warp, within the block's rows and within a tile.
  __device__ static int first_row() {
    return static_cast<int>(threadIdx.x) / 32 % C::kRowWarps * C::kWarpRows;
  }
  __device__ static int first_key() {
    return static_cast<int>(threadIdx.x) / 32 / C::kRowWarps * C::kWarpKeys;
  }
  // The row, within the block, of the thread's elements 2·half and 2·half + 1 in mma tile i.
  __device__ int row_at(int i, int half) const {
    return first_row() + i * 16 + half * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  // Chunk 2·step + half is half ^ 2·step, half being one bit: steps are XORs into the chunk. They
  // are applied to whole addresses, which differ from tile to tile, since registers for every
  // step's offset would be too many.
  __device__ static void load_q(uint32_t (&a)[4], uint32_t lane, int i, int step) {
    ldmatrix_x4(a, (lane ^ (step << 5)) + i * 16 * C::kLine);
  }
  __device__ void keep_q() {
    if constexpr (C::kQInRegisters) {
#pragma unroll
      for (int step = 0; step < C::kD / 16; ++step) load_q(q_registers[step], q_lane, 0, step);
    }
  }

  using Scores = float[C::kMi][C::kWarpKeys / 8][4];

  __device__ void multiply_keys(Scores& s, uint32_t stage) const {
    uint32_t q = q_lane;
    asm volatile("" : "+r"(q));  // as if it, too, differed from tile to tile
#pragma unroll
    for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
      for (int j = 0; j < C::kWarpKeys / 8; ++j)
        s[i][j][0] = s[i][j][1] = s[i][j][2] = s[i][j][3] = 0;
    }
#pragma unroll
    for (int step = 0; step < C::kD / 16; ++step) {
      uint32_t a[C::kMi][4];
#pragma unroll
      for (int i = 0; i < C::kMi; ++i) {
        if constexpr (C::kQInRegisters) {
#pragma unroll
          for (int r = 0; r < 4; ++r) a[i][r] = q_registers[step][r];
        } else {
          load_q(a[i], q, i, step);
        }
      }
#pragma unroll
      for (int j = 0; j < C::kWarpKeys / 16; ++j) {
        uint32_t b[4];
        ldmatrix_x4(b, ((stage + k_lane) ^ (step << 5)) + j * 16 * C::kLine);
#pragma unroll
        for (int i = 0; i < C::kMi; ++i) {
          mma_m16n8k16<T>(s[i][2 * j], a[i], b[0], b[1]);
          mma_m16n8k16<T>(s[i][2 * j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  // Scores of the keys past the first limit[i][half] of the warp's become -inf.
  __device__ void mask(Scores& s, const int (&limit)[C::kMi][2]) const {
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
      for (int j = 0; j < C::kWarpKeys / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (j * 8 + column + e % 2 >= limit[i][e / 2]) s[i][j][e] = kMinusInfinity;
        }
      }
    }
  }

  // Turns scores into weights and brings m, l and a up to date.
  __device__ void weigh(Scores& s, float scale_log2) {
    float factor[C::kMi][2];
    bool rescales = false;
#pragma unroll
    for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // NaN may get lost in a maximum; its own weight is NaN all the same.
        float max = row_max[i][half];
#pragma unroll
        for (int j = 0; j < C::kWarpKeys / 8; ++j) {
          max = fmaxf(max, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
        }
        max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
        max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
        factor[i][half] = rescale(row_max[i][half], max, scale_log2);
        rescales |= !(factor[i][half] == 1.0f);
        row_max[i][half] = max;
        const float shift = shift_of(max);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < C::kWarpKeys / 8; ++j) {
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            s[i][j][e] = exp2_approx((s[i][j][e] - shift) * scale_log2);
            sum += s[i][j][e];
          }
        }
        row_sum[i][half] = row_sum[i][half] * factor[i][half] + sum;
      }
    }
    if (!__any_sync(~0u, rescales)) return;  // maxima soon stop growing
#pragma unroll
    for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
      for (int n = 0; n < C::kD / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[i][n][e] *= factor[i][e / 2];
      }
    }
  }

  // The left operand of P·V, [16·step, 16·step + 16) of the keys to a step: mma's accumulators of
  // two neighbouring tiles of 8 columns are its fragments of 16.
  using Weights = uint32_t[C::kWarpKeys / 16][C::kMi][4];

  __device__ void pack(Weights& w, const Scores& s) const {
#pragma unroll
    for (int step = 0; step < C::kWarpKeys / 16; ++step) {
#pragma unroll
      for (int i = 0; i < C::kMi; ++i) {
        w[step][i][0] = packed<T>(s[i][2 * step][0], s[i][2 * step][1]);
        w[step][i][1] = packed<T>(s[i][2 * step][2], s[i][2 * step][3]);
        w[step][i][2] = packed<T>(s[i][2 * step + 1][0], s[i][2 * step + 1][1]);
        w[step][i][3] = packed<T>(s[i][2 * step + 1][2], s[i][2 * step + 1][3]);
      }
    }
  }
  __device__ void load_v(uint32_t (&b)[4], uint32_t stage, int step, int j) const {
    ldmatrix_x4_trans(b, ((stage + v_lane) ^ (j << 5)) + step * 16 * C::kLine);
  }

  __device__ void multiply_values(const Weights& w, uint32_t stage) {
#pragma unroll
    for (int step = 0; step < C::kWarpKeys / 16; ++step) {
#pragma unroll
      for (int j = 0; j < C::kD / 16; ++j) {
        uint32_t b[4];
        load_v(b, stage, step, j);
#pragma unroll
        for (int i = 0; i < C::kMi; ++i) {
          mma_m16n8k16<T>(acc[i][2 * j], w[step][i], b[0], b[1]);
          mma_m16n8k16<T>(acc[i][2 * j + 1], w[step][i], b[2], b[3]);
        }
      }
    }
  }

  // The same where V holds NaN or infinities that some row does not see: they are left out, and
  // then added one key at a time, rows that do not see the key keeping what they have. Slow and
  // rare, hence short: only loops over registers are unrolled.
  __device__ void multiply_special_values(const Weights& w, uint32_t stage,
                                          const int (&limit)[C::kMi][2]) {
    const int pair = static_cast<int>(threadIdx.x) % 4;
#pragma unroll 1
    for (int step = 0; step < C::kWarpKeys / 16; ++step) {
      uint32_t a[C::kMi][4];
#pragma unroll
      for (int i = 0; i < C::kMi * 4; ++i) {
        a[i / 4][i % 4] = w[0][i / 4][i % 4];
#pragma unroll
        for (int other = 1; other < C::kWarpKeys / 16; ++other) {
          if (step == other) a[i / 4][i % 4] = w[other][i / 4][i % 4];
        }
      }
#pragma unroll 1
      for (int key = -1; key < 16; ++key) {  // -1: everything finite, for all rows
        // A lane's b[0] and b[2] hold keys 2·pair and 2·pair + 1, b[1] and b[3] those 8 further on.
        const uint32_t mine = key % 8 / 2 == pair ? (key % 2 == 0 ? 0xFFFFu : 0xFFFF0000u) : 0;
        const uint32_t keep[2] = {key < 8 ? mine : 0, key < 8 ? 0 : mine};
#pragma unroll
        for (int j = 0; j < C::kD / 16; ++j) {
          uint32_t b[4];
          load_v(b, stage, step, j);
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            const uint32_t special = special_mask<T>(b[r]);
            b[r] &= key < 0 ? ~special : special & keep[r % 2];
          }
#pragma unroll
          for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              float sum[4];
#pragma unroll
              for (int e = 0; e < 4; ++e) sum[e] = acc[i][2 * j + n][e];
              mma_m16n8k16<T>(sum, a[i], b[2 * n], b[2 * n + 1]);
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                if (key < 0 || step * 16 + key < limit[i][e / 2]) acc[i][2 * j + n][e] = sum[e];
              }
            }
          }
        }
      }
    }
  }

  // Tile `tile` of the block. `masks`: it may hold keys that a row does not see.
  __device__ void attend(const AttentionParams& p, const AttentionBlock& b, uint32_t stage,
                         int tile, bool masks, bool special) {
    const int64_t key = (b.tile_begin + tile) * C::kBN + first_key();
    const int64_t rows = min(p.grid.rows - b.row_begin, int64_t{first_row()} + C::kWarpRows);
    if (rows <= first_row()) return;
    if (masks) {  // for this warp's rows and keys?
      const auto seen = [&](int64_t row) {
        return p.grid.visible(b, static_cast<uint32_t>(row), key, C::kWarpKeys);
      };
      if (seen(rows - 1) == 0) return;
      masks = seen(first_row()) < C::kWarpKeys;
    }
    Scores s;
    multiply_keys(s, stage);
    if (p.zero_scale) {
#pragma unroll
      for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
        for (int j = 0; j < C::kWarpKeys / 8; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) s[i][j][e] *= 0.0f;
        }
      }
    }
    int limit[C::kMi][2];
    if (masks) {
      limits(p, b, key, limit);
      mask(s, limit);
    }
    weigh(s, p.scale_log2);
    Weights w;
    pack(w, s);
    if (masks && special) {
      limits(p, b, key, limit);
      multiply_special_values(w, stage, limit);
    } else {
      multiply_values(w, stage);
    }
  }

  // How many of the warp's keys, from `key` on, the thread's rows see.
  __device__ void limits(const AttentionParams& p, const AttentionBlock& b, int64_t key,
                         int (&limit)[C::kMi][2]) const {
#pragma unroll
    for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        limit[i][half] =
            p.grid.visible(b, static_cast<uint32_t>(row_at(i, half)), key, C::kWarpKeys);
      }
    }
  }

  __device__ void add_sums_of_quad() {
#pragma unroll
    for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        row_sum[i][half] += __shfl_xor_sync(~0u, row_sum[i][half], 1);
        row_sum[i][half] += __shfl_xor_sync(~0u, row_sum[i][half], 2);
      }
    }
  }
};

}  // namespace
}  // namespace me
