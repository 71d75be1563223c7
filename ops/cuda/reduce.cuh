// Rows along the last axis, for kernels that reduce over them: reductions across the threads of a
// row, a row's elements in registers, and tiles of rows that lie side by side in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/base/rows.h"
#include "ops/cuda/element.cuh"
#include "ops/cuda/ptx.cuh"

namespace me {

constexpr int kWarpLanes = 32;
constexpr unsigned kFullWarp = 0xFFFFFFFFu;
constexpr int kMostBlockWarps = 32;
constexpr int64_t kMostBlocks = int64_t{1} << 30;  // of a grid; kernels stride over the rest

// ---- Reductions -----------------------------------------------------------------------------
//
// Butterflies, so that every lane ends with the same bits.

struct MaxOf {  // drops NaN: the sums that go with a maximum must show it
  __device__ static float none() { return -std::numeric_limits<float>::infinity(); }
  __device__ static float apply(float a, float b) { return fmaxf(a, b); }
};
struct SumOf {
  __device__ static float none() { return 0.0f; }
  __device__ static float apply(float a, float b) { return a + b; }
};

// Over `lanes` neighbours, a power of two. The whole warp calls it.
template <class Op>
__device__ inline float reduce_lanes(float v, int lanes = kWarpLanes) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    v = Op::apply(v, __shfl_xor_sync(kFullWarp, v, step));
  }
  return v;
}

// The threads that share a row: `lanes` neighbours in a warp, or a block of whole warps.
template <bool kBlock>
class Team;

template <>
class Team<false> {
 public:
  __device__ Team(int lanes) : lanes_(lanes) {}
  __device__ int size() const { return lanes_; }
  __device__ int thread() const { return static_cast<int>(threadIdx.x) & (lanes_ - 1); }
  template <class Op>
  __device__ float reduce(float v) {
    return reduce_lanes<Op>(v, lanes_);
  }

 private:
  int lanes_;
};

template <>
class Team<true> {
 public:
  using Scratch = float[2][kMostBlockWarps];
  __device__ Team(Scratch& scratch) : scratch_(scratch) {}
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  // One barrier. The halves of the scratch take turns: whoever writes to one has passed the barrier
  // of the other, behind which nobody still reads what this one held.
  template <class Op>
  __device__ float reduce(float v) {
    const int lane = thread() % kWarpLanes;
    float(&part)[kMostBlockWarps] = scratch_[turn_];
    turn_ ^= 1;
    v = reduce_lanes<Op>(v);
    if (lane == 0) part[thread() / kWarpLanes] = v;
    __syncthreads();  // every warp's part is there
    return reduce_lanes<Op>(lane < size() / kWarpLanes ? part[lane] : Op::none());
  }

 private:
  Scratch& scratch_;
  int turn_ = 0;
};

// ---- Rows in registers ----------------------------------------------------------------------
//
// Thread t of a team of P holds the vectors t, t + P, t + 2P, .. of its row, 16 bytes each. How
// they are fetched (in one access, or element by element) changes nothing about who holds what, so
// a row's sums do not depend on its alignment.

struct RowAccess {
  Rows rows;
  bool wide = false;  // each row starts on 16 bytes and its elements are neighbours
};

inline RowAccess row_access(const TensorDesc& desc) {
  RowAccess access{rows_of(desc), false};
  const int64_t vector = 16 / size_of(desc.dtype);
  access.wide = access.rows.stride == 1 && desc.alignment_bytes >= 16;
  for (const int64_t stride : access.rows.leading.strides) {
    access.wide = access.wide && stride % vector == 0;
  }
  return access;
}

__device__ inline uint32_t bits_of(float x) { return __float_as_uint(x); }
__device__ inline uint32_t bits_of(__half x) { return __half_as_ushort(x); }
__device__ inline uint32_t bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }

// A whole vector in one access. It is put together from words and named by its instruction: left to
// itself the compiler makes four accesses of some.
template <class T>
__device__ inline void store_vector(T* to, const Vector<T>& vector) {
  const auto word = [&](int i) {
    if constexpr (sizeof(T) == 4) {
      return bits_of(vector.at[i]);
    } else {
      return bits_of(vector.at[2 * i]) | bits_of(vector.at[2 * i + 1]) << 16;
    }
  };
  __stwb(reinterpret_cast<uint4*>(to), make_uint4(word(0), word(1), word(2), word(3)));
}

// The first `length` elements from `row` on; `fill` behind them.
template <class T, int kVectors>
__device__ inline void load_row(const T* row, int64_t stride, bool wide, int64_t length, int thread,
                                int team, T fill, Vector<T> (&to)[kVectors]) {
  constexpr int kWide = Vector<T>::kSize;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
#pragma unroll
    for (int j = 0; j < kWide; ++j) to[k].at[j] = fill;
  }
  if (wide) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int64_t begin = (thread + int64_t{k} * team) * kWide;
      if (begin + kWide <= length) to[k] = *reinterpret_cast<const Vector<T>*>(row + begin);
    }
    if (length % kWide == 0) return;
  }
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int64_t begin = (thread + int64_t{k} * team) * kWide;
    if (wide && begin + kWide <= length) continue;
    const T* at = row + begin * stride;
#pragma unroll
    for (int j = 0; j < kWide; ++j, at += stride) {
      if (begin + j < length) to[k].at[j] = *at;
    }
  }
}

// What load_row fetches, the other way.
template <class T, int kVectors>
__device__ inline void store_row(T* row, int64_t stride, bool wide, int64_t length, int thread,
                                 int team, const Vector<T> (&from)[kVectors]) {
  constexpr int kWide = Vector<T>::kSize;
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const int64_t begin = (thread + int64_t{k} * team) * kWide;
    if (wide && begin + kWide <= length) {
      store_vector(row + begin, from[k]);
    } else {
      T* at = row + begin * stride;
#pragma unroll
      for (int j = 0; j < kWide; ++j, at += stride) {
        if (begin + j < length) *at = from[k].at[j];
      }
    }
  }
}

template <class T, int kVectors>
__device__ inline void widen(const Vector<T> (&from)[kVectors],
                             float (&to)[kVectors * Vector<T>::kSize]) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
#pragma unroll
    for (int j = 0; j < Vector<T>::kSize; ++j) {
      to[k * Vector<T>::kSize + j] = to_f32(from[k].at[j]);
    }
  }
}

template <class T, int kVectors>
__device__ inline void narrow(const float (&from)[kVectors * Vector<T>::kSize],
                              Vector<T> (&to)[kVectors]) {
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
#pragma unroll
    for (int j = 0; j < Vector<T>::kSize; ++j) {
      to[k].at[j] = from_f32<T>(from[k * Vector<T>::kSize + j]);
    }
  }
}

// ---- Tiles ----------------------------------------------------------------------------------
//
// Where neighbouring rows are closer in memory than neighbours in a row (a transposed matrix), a
// block takes a tile: as many rows as make 32 bytes of a column (a sector), and all N columns. They
// pass through shared memory by chunks of as many columns as the block has threads:
//
//     x, a column at a time           a slot of shared memory: the chunk's columns, 32 bytes each
//   column c   ..│32 bytes│..   ──►   column c at tile_column(c), row r at r·sizeof(T)
//   column c+1 ..│32 bytes│..         word p of a column: rows p (fp32), or 2p and 2p + 1 (16 bits)
//
// Thread (p, q) = (t % 8, t / 8) works on word p of the columns 8q .. 8q + 7, so it meets the same
// one or two rows in each chunk, and its results are 16 or 32 neighbours of an output row. A warp
// reads word p of four columns 8 apart at a time, which tile_column() keeps in different banks.
//
// Chunks are met twice, to reduce and to apply. Each stays in its slot in between where there are
// slots for all; else slots form a ring, and the first chunks are loaded again in the end:
//
//   position      0 .. first .. K-1  K .. first+K-1     first = K - slots
//   its chunk     0 .. first .. K-1  0 .. first-1
//   met to        └──── reduce ───┘
//                      └──────── apply ───────┘

constexpr int kTileColumnBytes = 32;
constexpr int kTileWords = 8;    // of 4 bytes, in a column
constexpr int kTileColumns = 8;  // of a thread in each chunk
constexpr int kTileAhead = 4;    // chunks on their way while one is worked on
template <class T>
constexpr int kTileRows = kTileColumnBytes / static_cast<int>(sizeof(T));
template <class T>
constexpr int kTilePack = 4 / static_cast<int>(sizeof(T));  // rows of a thread

__host__ __device__ constexpr int tile_column(int column) { return column ^ ((column >> 3) & 3); }

// Which way lanes walk to fetch a tile.
enum class TileWalk : uint8_t {
  kVectors,  // half a column's 32 bytes each, asynchronously
  kRows,     // an element each, along the rows
  kColumns,  // an element each, along the columns
};

struct TileAccess {
  Rows rows;
  TileWalk walk = TileWalk::kColumns;
};

// Whether neighbouring rows are closer in memory than neighbours in a row. Extents of 1 decide
// where there is nothing else, so that one row of a batch goes the way of the whole batch.
inline bool rows_are_adjacent(const TensorDesc& desc) {
  const int64_t column = desc.strides.back();
  bool any = false;
  for (int i = desc.shape.rank() - 2; i >= 0; --i) {
    if (desc.shape[i] > 1) return desc.strides[i] < column;
    any = any || desc.strides[i] < column;
  }
  return any;
}

inline TileAccess tile_access(const TensorDesc& desc) {
  TileAccess access{rows_of(desc), TileWalk::kColumns};
  if (!rows_are_adjacent(desc)) return access;
  const Dims& shape = access.rows.leading.shape;
  const Dims& strides = access.rows.leading.strides;
  const int64_t vector = 16 / size_of(desc.dtype);
  bool vectors = shape.rank() > 0 && strides.back() == 1 && shape.back() % vector == 0 &&
                 access.rows.stride % vector == 0 && desc.alignment_bytes >= 16;
  for (int i = 0; i + 1 < shape.rank(); ++i) vectors = vectors && strides[i] % vector == 0;
  access.walk = vectors ? TileWalk::kVectors : TileWalk::kRows;
  return access;
}

struct TilePlan {
  int64_t tiles = 0;
  int chunks = 0;   // K
  int threads = 0;  // and columns of a chunk
  int slots = 0;    // each of one chunk of every operand
  int slot_bytes = 0;

  int shared_bytes() const { return slots * slot_bytes; }
  __host__ __device__ int first() const { return chunks - slots; }
};

// `operands` tensors of this many rows, of `length` >= 1. The shape of a block depends on the
// length alone. `most_threads` and `reserved_bytes` (of static shared memory) are the kernel's.
inline TilePlan plan_tiles(int64_t rows, int64_t length, DType dtype, int operands,
                           int most_threads, int64_t reserved_bytes, int64_t shared_bytes) {
  TilePlan plan;
  const int64_t tile_rows = kTileColumnBytes / size_of(dtype);
  plan.tiles = (rows + tile_rows - 1) / tile_rows;
  plan.threads = kWarpLanes;
  while (plan.threads < most_threads && plan.threads < length) plan.threads *= 2;
  plan.chunks = static_cast<int>((length + plan.threads - 1) / plan.threads);
  plan.slot_bytes = operands * plan.threads * kTileColumnBytes;
  const int64_t fit =
      std::max<int64_t>(kTileAhead + 1, (shared_bytes - reserved_bytes) / plan.slot_bytes);
  plan.slots = static_cast<int>(std::min<int64_t>(plan.chunks, fit));
  return plan;
}

// Where the rows of a tile begin in one operand: found once, by a thread each, as that may take
// divisions. A barrier stands between this and its use.
template <class T>
__device__ inline void find_tile_rows(const Rows& rows, int64_t first_row,
                                      int64_t (&offsets)[kTileRows<T>]) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= kTileRows<T>) return;
  const int64_t row = first_row + thread;
  offsets[thread] = row < rows.count ? rows.offset(row) : 0;
}

// Columns [begin, begin + blockDim.x) of an operand's tile into `slot`; what lies outside the
// tensor becomes 0. They are there for this thread after a cp.async wait, and for all after a
// barrier too.
template <class T>
__device__ inline void load_tile(const T* x, const TileAccess& from, int64_t first_row,
                                 const int64_t (&offsets)[kTileRows<T>], int64_t begin,
                                 unsigned char* slot) {
  constexpr int kRows = kTileRows<T>;
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t stride = from.rows.stride;
  const auto left = static_cast<int>(from.rows.length - begin < threads ? from.rows.length - begin
                                                                        : threads);  // columns
  const auto live =
      static_cast<int>(from.rows.count - first_row < kRows ? from.rows.count - first_row : kRows);
  const auto put = [slot](int column, int row, T value) {
    reinterpret_cast<T*>(slot + tile_column(column) * kTileColumnBytes)[row] = value;
  };
  if (from.walk == TileWalk::kVectors) {
    const int row = thread % 2 * Vector<T>::kSize;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int column = (thread + n * threads) / 2;
      const bool inside = row < live && column < left;
      const T* source = inside ? x + offsets[row] + (begin + column) * stride : x;
      cp_async_16(shared_address(slot + tile_column(column) * kTileColumnBytes + thread % 2 * 16),
                  source, inside);
    }
  } else if (from.walk == TileWalk::kRows) {
    const int row = thread % kRows;
    const T* at = x + offsets[row] + (begin + thread / kRows) * stride;
    const int64_t step = threads / kRows * stride;
    T v[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n, at += step) {
      const int column = thread / kRows + n * (threads / kRows);
      v[n] = row < live && column < left ? *at : from_f32<T>(0.0f);
    }
#pragma unroll
    for (int n = 0; n < kRows; ++n) put(thread / kRows + n * (threads / kRows), row, v[n]);
  } else {
    const T* const at = x + (begin + thread) * stride;
    T v[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      v[n] = n < live && thread < left ? at[offsets[n]] : from_f32<T>(0.0f);
    }
#pragma unroll
    for (int n = 0; n < kRows; ++n) put(thread, n, v[n]);
  }
}

// This thread's columns of a chunk, of which `count` exist; `fill` behind them.
template <class T>
__device__ inline void tile_values(const unsigned char* slot, int count, float fill,
                                   float (&to)[kTilePack<T>][kTileColumns]) {
  using Word = Vector<T, kTilePack<T>>;
  const int p = static_cast<int>(threadIdx.x) % kTileWords;
  const int q = static_cast<int>(threadIdx.x) / kTileWords;
#pragma unroll
  for (int j = 0; j < kTileColumns; ++j) {
    const int column = tile_column(q * kTileColumns + j);
    const Word word = reinterpret_cast<const Word*>(slot + column * kTileColumnBytes)[p];
#pragma unroll
    for (int i = 0; i < kTilePack<T>; ++i) to[i][j] = j < count ? to_f32(word.at[i]) : fill;
  }
}

// Writes the first `count` of a thread's columns to where they begin in an output row.
template <class T>
__device__ inline void store_tile_row(T* to, int64_t stride, bool wide, int count,
                                      const float (&values)[kTileColumns]) {
  constexpr int kWide = Vector<T>::kSize;
  if (wide && count == kTileColumns) {
    Vector<T> vectors[kTileColumns / kWide];
    narrow(values, vectors);
#pragma unroll
    for (int k = 0; k < kTileColumns / kWide; ++k) store_vector(to + k * kWide, vectors[k]);
  } else {
#pragma unroll
    for (int j = 0; j < kTileColumns; ++j) {
      if (j < count) to[j * stride] = from_f32<T>(values[j]);
    }
  }
}

// How many of a thread's columns of chunk `chunk` exist.
__device__ inline int tile_count(int chunk, int64_t length) {
  const int own = static_cast<int>(threadIdx.x) / kTileWords * kTileColumns;
  const int64_t left = length - int64_t{chunk} * blockDim.x - own;
  return static_cast<int>(left < 0 ? 0 : left < kTileColumns ? left : kTileColumns);
}

// Meets a tile's chunks in order: reduce(chunk, slot) each, then between(), then apply(chunk, slot)
// each. load(chunk, slot) fetches one; slots count from 0. All threads of the block call it.
//
// A position's load is issued kTileAhead steps before it is met, after the barrier behind which
// nobody needs what its slot held. Each step commits one cp.async group, empty or not, so that all
// but the newest kTileAhead - 1 are those of the positions up to the one met now.
template <class Load, class Reduce, class Between, class Apply>
__device__ inline void sweep_tile(const TilePlan& plan, const Load& load, const Reduce& reduce,
                                  const Between& between, const Apply& apply) {
  const int chunks = plan.chunks;
  const int end = plan.first() + chunks;  // of the positions
  for (int step = -kTileAhead; step < 2 * chunks; ++step) {
    const bool again = step >= chunks;
    const int position = again ? step - chunks + plan.first() : step;
    if (step >= 0) {
      cp_async_wait<kTileAhead - 1>();
      __syncthreads();  // everyone's loads of this position are there, and the last one is done
                        // with
    }
    const int next = position + kTileAhead;
    if (again ? chunks <= next && next < end : next < chunks) {
      load(next % chunks, next % plan.slots);
    }
    cp_async_commit();
    if (step == chunks) between();
    if (again) {
      apply(position % chunks, position % plan.slots);
    } else if (step >= 0) {
      reduce(position, position % plan.slots);
    }
  }
  __syncthreads();  // the next tile may overwrite the slots
}

}  // namespace me
