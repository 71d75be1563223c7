// linear_cuda_mma: Y = act(X·W + b) for fp16 and bf16 on tensor cores, by mma.m16n8k16 with fp32
// accumulators. Any chip from compute capability 8.0 on, any shape, any stride.
//
// A block computes a tile of Y, BM x BN, over all of K or one part of it, in stages of BK = 64;
// each warp keeps its part of the tile in registers.
//            K ->                       BN
//        +----+----+- -            +----------+
//     BM | X0 | X1 |            BK |    W0    |   stages 0, 1, .. of a ring in shared memory
//        +----+----+- -            +----------+
//
// X lies in a stage as [BM][64], W as it does in memory: [BN][64] where K is contiguous (ldmatrix
// gives mma's B fragment as it is), [64][BN] where N is (ldmatrix transposes). Chunk c (16 bytes)
// of row r is put at c ^ (r % 8), so that the eight rows an ldmatrix reads at one c, and the eight
// chunks that neighbouring threads write to a row, fall into different banks.
//
// Two ways to fill a stage, chosen when preparing:
//   linear_async    both operands start at, and step by, multiples of 16 bytes: cp.async, ahead of
//                   the arithmetic by kStages - 1 stages
//   linear_strided  everything else: chunks are gathered into registers while the stage before is
//                   computed (StridedCopier)
// Either way what lies past M, N or K is zeros: stale memory could be a NaN, and 0·NaN is one.
//
// A stage is four mma steps. A fragment of W is loaded 16 columns ahead of its use, those of X a
// step ahead; the last step loads the first of the next stage, so that the stage's one barrier
// stands in the middle of arithmetic:
//
//   step   0, 1, 2: a third each of copying the stage kStages - 1 ahead, into the place that the
//                   last barrier freed
//   step   3:       wait, barrier, first fragments of the next stage, last 16 columns of this one
//
// While every chunk to be copied is whole (a full stage of K, a block inside N) the loop has
// neither a branch nor a copy of variable size, which the compiler makes ten instructions of. The
// last stages, and blocks at the edge of N, go through a second loop that has both.
//
// Budget of 128x256: 3 stages of 48 KiB; 64x64 to a warp are 128 registers of accumulators, 32 of X
// and 8 of W; 256 threads, 1 block to a multiprocessor.
//
// Numerics: fp32 accumulation along K in order. K in several parts (small M·N) leaves fp32 sums in
// the workspace, and linear_reduce adds them in order. Bias and activation in fp32, one rounding.
#include "ops/cuda/ptx.cuh"
#include "ops/linear/cuda_operands.cuh"

namespace me {
namespace {

constexpr int kMmaSteps = kBK / 16;  // of a stage

template <int kBM_, int kBN_, int kWarpsM_, int kWarpsN_, int kStages_, int kResident_>
struct Config {
  static constexpr int kBM = kBM_, kBN = kBN_, kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kStages = kStages_;
  static constexpr int kResident = kResident_;  // blocks on a multiprocessor
  static constexpr int kWarpM = kBM / kWarpsM, kWarpN = kBN / kWarpsN;
  static constexpr int kMi = kWarpM / 16;                        // mma tiles of 16 rows
  static constexpr int kNj = kWarpN / 16;                        // pairs of mma tiles of 8 columns
  static constexpr int kXChunks = kBM * kLineChunks / kThreads;  // per thread and stage
  static constexpr int kWChunks = kBN * kLineChunks / kThreads;
  static constexpr int kXBytes = kBM * kLineBytes;
  static constexpr int kStageBytes = (kBM + kBN) * kLineBytes;
  // Of the epilogue's fp32 rows: a half-warp's float2 stores, 4 rows of 8 floats, hit all banks
  // once.
  static constexpr int kPitch = kWarpN + 8;
  static constexpr int kSharedBytes = std::max(kStages * kStageBytes, kBM* kWarpsN* kPitch * 4);
  static_assert(kWarpM % 16 == 0 && kWarpN % 32 == 0);
  static_assert(kXChunks * kThreads == kBM * kLineChunks);
  static_assert(kWChunks * kThreads == kBN * kLineChunks);
  // A thread's chunks lie whole multiples of 8 rows apart, in either layout: one swizzle for all.
  static_assert(kThreads / kLineChunks % 8 == 0 && kThreads / (kBN / kChunk) % 8 == 0);
};

//                       BM   BN  warps stages resident
using Large = Config<128, 256, 2, 4, 3, 1>;
using Medium = Config<128, 128, 2, 2, 3, 2>;
using Small = Config<64, 64, 2, 2, 4, 3>;
using Skinny = Config<16, 128, 1, 4, 6, 2>;
// Chunks on their way take registers here, so a warp has fewer accumulators. Two stages.
using StridedMedium = Config<128, 128, 2, 4, 2, 1>;
using StridedSmall = Config<64, 64, 2, 2, 2, 3>;
using StridedSkinny = Config<16, 128, 1, 4, 2, 3>;

// ---- shared memory to mma ----

// Where a lane's ldmatrix addresses start. Everything that varies is either an XOR into the chunk's
// bits or a constant that the instruction adds.
template <class C, bool kNMajor>
struct FragmentReader {
  uint32_t a_lane, b_lane;

  __device__ FragmentReader(int warp_m, int warp_n, int lane) {
    // Rows by k: (0-7, 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15).
    a_lane = swizzled(warp_m * C::kWarpM + lane % 16, lane / 16);
    if constexpr (kNMajor) {
      // k by n: the same.
      const int chunk = warp_n * (C::kWarpN / kChunk) + lane / 16;
      b_lane = C::kXBytes + lane % 16 * (C::kBN * 2) + ((chunk ^ (lane & 7)) << 4);
    } else {
      // n by k: (0-7, 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15).
      const int row = warp_n * C::kWarpN + lane % 8 + lane / 16 * 8;
      b_lane = C::kXBytes + swizzled(row, lane / 8 % 2);
    }
  }

  // Chunk 2·step + half is half ^ 2·step, half being one bit; likewise along n, where the warp's
  // first chunk is a multiple of kWarpN / 8.
  __device__ void load_a(uint32_t (&a)[C::kMi][4], uint32_t stage, int step) const {
#pragma unroll
    for (int i = 0; i < C::kMi; ++i) {
      ldmatrix_x4(a[i], stage + (a_lane ^ (step << 5)) + i * 16 * kLineBytes);
    }
  }
  // {b0, b1} of 8 columns, then of the next 8.
  __device__ void load_b(uint32_t (&b)[4], uint32_t stage, int step, int j) const {
    if constexpr (kNMajor) {
      ldmatrix_x4_trans(b, stage + (b_lane ^ (j << 5)) + step * 16 * (C::kBN * 2));
    } else {
      ldmatrix_x4(b, stage + (b_lane ^ (step << 5)) + j * 16 * kLineBytes);
    }
  }
};

template <class C>
using Accumulators = float[C::kMi][2 * C::kNj][4];

// 16 columns of the warp's tile.
template <class C, class T>
__device__ void multiply(Accumulators<C>& acc, const uint32_t (&a)[C::kMi][4],
                         const uint32_t (&b)[4], int j) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < C::kMi; ++i) {
      const int m = half == 0 ? i : C::kMi - 1 - i;  // back and forth: neighbours share an operand
      mma_m16n8k16<T>(acc[m][2 * j + half], a[m], b[2 * half], b[2 * half + 1]);
    }
  }
}

// ---- filling a stage by cp.async ----

// A thread's chunks. It has the same chunk of K (or of N, for W as [64][BN]) in all of its rows.
template <class C, bool kNMajor>
struct AsyncCopier {
  static constexpr int kXRows = C::kThreads / kLineChunks;  // between a thread's chunks of X
  static constexpr int kWLineChunks = kNMajor ? C::kBN / kChunk : kLineChunks;
  static constexpr int kWRows = C::kThreads / kWLineChunks;
  static constexpr uint32_t kWLine = kWLineChunks * 16;
  static constexpr int kChunks = C::kXChunks + C::kWChunks;

  const uint16_t* x[C::kXChunks];
  const uint16_t* w;
  int64_t w_row;      // elements of W between the thread's neighbouring rows
  int64_t w_advance;  // and from a stage to the next
  uint32_t to_x, to_w;
  uint32_t w_valid = 0;  // a bit per chunk: its row is inside
  int w_bytes = 0;       // kNMajor: of a chunk that are inside N
  int w_k;               // kNMajor: the thread's first row in a stage
  int64_t k_left;        // elements of K from the next stage's start on
  bool whole;            // all chunks of W are whole where K has a stage left

  __device__ AsyncCopier(const LinearParams& p, const LinearBlock& block) {
    const int thread = static_cast<int>(threadIdx.x);
    k_left = block.k_end - block.k_begin;
    const int row = thread / kLineChunks;
    const int chunk = thread % kLineChunks;
#pragma unroll
    for (int i = 0; i < C::kXChunks; ++i) {
      const int64_t m = block.m0 + row + i * kXRows;
      // A row past M reads row 0; what becomes of it is stored nowhere.
      x[i] = static_cast<const uint16_t*>(p.x.data) + p.x.rows.offset(m < p.grid.m ? m : 0) +
             block.k_begin + chunk * kChunk;
    }
    to_x = swizzled(row, chunk);
    const int64_t step = p.w.rows.leading.shape.rank() == 0 ? 0 : p.w.rows.leading.strides[0];
    const auto* const w0 = static_cast<const uint16_t*>(p.w.data);
    if constexpr (kNMajor) {
      w_k = thread / kWLineChunks;
      const int n_chunk = thread % kWLineChunks;
      const int64_t n = block.n0 + n_chunk * kChunk;
      const int64_t inside = p.grid.n - n;
      w_bytes = inside >= kChunk ? 16 : inside > 0 ? static_cast<int>(inside) * 2 : 0;
      w = w0 + (block.k_begin + w_k) * p.w.rows.stride + n;
      w_row = kWRows * p.w.rows.stride;
      w_advance = kBK * p.w.rows.stride;
      to_w = C::kXBytes + w_k * kWLine + ((n_chunk ^ (w_k & 7)) << 4);
    } else {
      const int64_t n = block.n0 + row;
#pragma unroll
      for (int i = 0; i < C::kWChunks; ++i) w_valid |= (n + i * kWRows < p.grid.n ? 1u : 0u) << i;
      w = w0 + n * step + block.k_begin + chunk * kChunk;
      w_row = kWRows * step;
      w_advance = kBK;
      to_w = C::kXBytes + swizzled(row, chunk);
    }
  }

  // Chunks [from, to) of the next stage; kWhole: all of them are inside. Else what lies past the
  // end of K, or of a row, is zeros.
  template <int kFrom, int kTo, bool kWhole>
  __device__ void copy(uint32_t stage) {
    if constexpr (kWhole) {
      copy_with<kFrom, kTo>(stage,
                            [](int, uint32_t at, const uint16_t* from) { cp_async_16(at, from); });
      return;
    }
    const int64_t inside = k_left - static_cast<int>(threadIdx.x) % kLineChunks * kChunk;
    const int k_bytes = inside >= kChunk ? 16 : inside > 0 ? static_cast<int>(inside) * 2 : 0;
    copy_with<kFrom, kTo>(stage, [&](int i, uint32_t at, const uint16_t* from) {
      int bytes = k_bytes;
      if (i >= C::kXChunks) {
        i -= C::kXChunks;
        if constexpr (kNMajor) {
          bytes = w_k + i * kWRows < k_left ? w_bytes : 0;
        } else {
          bytes = w_valid >> i & 1 ? k_bytes : 0;
        }
      }
      cp_async_up_to_16(at, from, bytes);
    });
  }
  template <int kFrom, int kTo, class Copy>
  __device__ void copy_with(uint32_t stage, const Copy& copy_chunk) {
#pragma unroll
    for (int i = kFrom; i < kTo && i < C::kXChunks; ++i) {
      copy_chunk(i, stage + to_x + i * kXRows * kLineBytes, x[i]);
      x[i] += kBK;
    }
#pragma unroll
    for (int i = std::max(kFrom - C::kXChunks, 0); i < kTo - C::kXChunks && i < C::kWChunks; ++i) {
      copy_chunk(C::kXChunks + i, stage + to_w + i * kWRows * kWLine, w + i * w_row);
    }
  }
  // After the last chunk of a stage.
  __device__ void advance() {
    w += w_advance;
    k_left -= kBK;
  }
};

// ---- epilogue ----

// A warp's accumulators through its own part of shared memory, so that neighbouring lanes store
// neighbouring columns. Nobody may be reading stages any more.
template <class C>
__device__ void finish_block(const LinearParams& p, const LinearBlock& block,
                             const Accumulators<C>& acc, uint8_t* shared) {
  const LinearEpilogue& e = p.epilogue;
  void* const y =
      p.part_elements == 0 ? e.y : static_cast<float*>(e.y) + block.split * p.part_elements;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float* const staging = reinterpret_cast<float*>(shared) + warp * C::kWarpM * C::kPitch;
#pragma unroll
  for (int i = 0; i < C::kMi; ++i) {
#pragma unroll
    for (int n = 0; n < 2 * C::kNj; ++n) {
      float* const to = staging + (i * 16 + lane / 4) * C::kPitch + n * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(to) = {acc[i][n][0], acc[i][n][1]};
      *reinterpret_cast<float2*>(to + 8 * C::kPitch) = {acc[i][n][2], acc[i][n][3]};
    }
  }
  __syncwarp();

  const int64_t m0 = block.m0 + warp / C::kWarpsN * C::kWarpM;
  const int64_t n0 = block.n0 + warp % C::kWarpsN * C::kWarpN;
  const int rows = static_cast<int>(min(int64_t{C::kWarpM}, p.grid.m - m0));  // or negative: none
  const int columns = static_cast<int>(min(int64_t{C::kWarpN}, p.grid.n - n0));
  if (e.wide) {
    constexpr int kRunLanes = C::kWarpN / kChunk;  // to a row, each with 8 columns
    const int run = lane % kRunLanes * kChunk;
    const int count = min(kChunk, columns - run);
    if (count <= 0) return;
    float bias[kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) bias[j] = j < count ? bias_at(e, n0 + run + j) : 0.0f;
#pragma unroll 1
    for (int r = lane / kRunLanes; r < rows; r += 32 / kRunLanes) {
      float values[kChunk];
#pragma unroll
      for (int j = 0; j < kChunk; j += 4) {
        const float4 four = *reinterpret_cast<const float4*>(staging + r * C::kPitch + run + j);
        values[j] = finish(e, four.x, bias[j]), values[j + 1] = finish(e, four.y, bias[j + 1]);
        values[j + 2] = finish(e, four.z, bias[j + 2]),
                   values[j + 3] = finish(e, four.w, bias[j + 3]);
      }
      store_values(e, y, e.rows.offset(m0 + r) + n0 + run, values, count);
    }
    return;
  }
#pragma unroll 1
  for (int c = lane; c < columns; c += 32) {
    const float bias = bias_at(e, n0 + c);
#pragma unroll 4
    for (int r = 0; r < rows; ++r) {
      const float value[1] = {finish(e, staging[r * C::kPitch + c], bias)};
      store_values(e, y, e.rows.offset(m0 + r) + (n0 + c) * e.rows.stride, value, 1);
    }
  }
}

// ---- kernels ----

template <class C, class T, bool kNMajor>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    linear_async(const __grid_constant__ LinearParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t ring = shared_address(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const LinearBlock block = find_block(p.grid, C::kBM, C::kBN);
  using Copier = AsyncCopier<C, kNMajor>;
  constexpr int kThird = (Copier::kChunks + kMmaSteps - 2) / (kMmaSteps - 1);
  Copier copier(p, block);
  const FragmentReader<C, kNMajor> reader(warp / C::kWarpsN, warp % C::kWarpsN,
                                          static_cast<int>(threadIdx.x) % 32);
  Accumulators<C> acc = {};

  // Every stage is one group of copies, empty ones past the end of K included, so that counting
  // groups counts stages.
  const int64_t stages = (block.k_end - block.k_begin + kBK - 1) / kBK;
#pragma unroll
  for (int s = 0; s < C::kStages - 1; ++s) {
    if (s < stages) {
      copier.template copy<0, Copier::kChunks, false>(ring + s * C::kStageBytes);
      copier.advance();
    }
    cp_async_commit();
  }
  uint32_t reading = 0;                                  // offset of the stage being computed
  uint32_t filling = (C::kStages - 1) * C::kStageBytes;  // and of the one being filled
  const auto next = [](uint32_t offset) {
    return offset == (C::kStages - 1) * C::kStageBytes ? 0u : offset + C::kStageBytes;
  };
  cp_async_wait<C::kStages - 2>();  // the first stage: this thread's copies, then everybody's
  __syncthreads();
  uint32_t a[2][C::kMi][4];
  uint32_t b[2][4];
  reader.load_a(a[0], ring, 0);
  reader.load_b(b[0], ring, 0, 0);

  // Computes a stage and, where there are `more`, copies the one kStages - 1 ahead.
  const auto run_stage = [&](auto whole, bool more) {
    constexpr bool kWhole = decltype(whole)::value;
#pragma unroll
    for (int step = 0; step < kMmaSteps; ++step) {
      const int next_step = (step + 1) % kMmaSteps;
#pragma unroll
      for (int j = 0; j < C::kNj; ++j) {
        const bool last = j == C::kNj - 1;
        if (last && next_step == 0) {
          // This stage has been read. The barrier frees it, and makes the next one visible.
          cp_async_commit();
          cp_async_wait<C::kStages - 2>();
          __syncthreads();
          reading = next(reading);
        }
        reader.load_b(b[(j + 1) % 2], ring + reading, last ? next_step : step, (j + 1) % C::kNj);
        if (last) reader.load_a(a[(step + 1) % 2], ring + reading, next_step);
        multiply<C, T>(acc, a[step % 2], b[j % 2], j);
      }
      const uint32_t to = ring + filling;
      if (more && step == 0) copier.template copy<0, kThird, kWhole>(to);
      if (more && step == 1) copier.template copy<kThird, 2 * kThird, kWhole>(to);
      if (more && step == 2) {
        copier.template copy<2 * kThird, Copier::kChunks, kWhole>(to);
        copier.advance();
      }
    }
    filling = next(filling);
  };
  // As long as every chunk that is copied is whole, no branch stands between the arithmetic.
  const int64_t whole_stages = (block.k_end - block.k_begin) / kBK - (C::kStages - 1);
  int64_t s = 0;
  if (block.n0 + C::kBN <= p.grid.n) {
#pragma unroll 1
    for (; s < whole_stages; ++s) run_stage(std::true_type(), true);
  }
#pragma unroll 1
  for (; s < stages; ++s) run_stage(std::false_type(), s + C::kStages - 1 < stages);
  cp_async_wait<0>();
  __syncthreads();  // nobody reads a stage any more, and the epilogue may have the memory
  finish_block<C>(p, block, acc, shared);
}

template <class C, class T>
__global__ void __launch_bounds__(C::kThreads, C::kResident)
    linear_strided(const __grid_constant__ LinearParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t ring = shared_address(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const LinearBlock block = find_block(p.grid, C::kBM, C::kBN);
  StridedCopier<C, C::kBM> x(p.x, block.m0, p.grid.m, block);
  StridedCopier<C, C::kBN> w(p.w, block.n0, p.grid.n, block);
  const FragmentReader<C, false> reader(warp / C::kWarpsN, warp % C::kWarpsN,
                                        static_cast<int>(threadIdx.x) % 32);
  Accumulators<C> acc = {};

  const int64_t stages = (block.k_end - block.k_begin + kBK - 1) / kBK;
  if (stages > 0) {
    x.fetch();
    w.fetch();
    x.store(shared);
    w.store(shared + C::kXBytes);
  }
#pragma unroll 1
  for (int64_t s = 0; s < stages; ++s) {
    __syncthreads();  // stage s is written, and stage s - 1, whose place s + 1 takes, is read
    const uint32_t stage = ring + s % 2 * C::kStageBytes;
    const bool more = s + 1 < stages;
    if (more) {
      x.fetch();
      w.fetch();
    }
#pragma unroll
    for (int step = 0; step < kMmaSteps; ++step) {
      uint32_t a[C::kMi][4];
      reader.load_a(a, stage, step);
#pragma unroll
      for (int j = 0; j < C::kNj; ++j) {
        uint32_t b[4];
        reader.load_b(b, stage, step, j);
        multiply<C, T>(acc, a, b, j);
      }
    }
    if (more) {
      uint8_t* const to = shared + (s + 1) % 2 * C::kStageBytes;
      x.store(to);
      w.store(to + C::kXBytes);
    }
  }
  __syncthreads();  // nobody reads a stage any more, and the epilogue may have the memory
  finish_block<C>(p, block, acc, shared);
}

// ---- host ----

template <class C>
constexpr LinearTile tile_of(std::string_view name, double rate, double step_us) {
  return {name, C::kBM, C::kBN, kBK, C::kSharedBytes, C::kResident, rate, step_us};
}

// `rate` is of what mma.sync reaches at best; the second number is LinearTile::step_us. Of the
// strided tiles that of 64x64 is measured, with a W whose elements are read one by one; the others
// have it by the elements that a thread brings.
constexpr LinearTile kAsyncTiles[] = {
    tile_of<Large>("128x256x64", 0.85, 0.25),
    tile_of<Medium>("128x128x64", 0.75, 0.25),
    tile_of<Small>("64x64x64", 0.5, 0.25),
    tile_of<Skinny>("16x128x64", 0.2, 0.25),
};
constexpr LinearTile kStridedTiles[] = {
    tile_of<StridedMedium>("128x128x64", 0.35, 3.4),
    tile_of<StridedSmall>("64x64x64", 0.2, 3.4),
    tile_of<StridedSkinny>("16x128x64", 0.08, 3.8),
};
// Of an H200's multiprocessor, by mma.sync: some two thirds of what wgmma has.
constexpr double kFlopsPerUs = 4.3e6;

enum class Path : uint8_t { kAsyncKMajor, kAsyncNMajor, kStrided };

struct Choice : LinearChoice {
  Path path = Path::kStrided;
};

std::string to_string(const Choice& choice) {
  constexpr const char* kPaths[] = {", cp.async, W along K", ", cp.async, W along N", ", gathered"};
  return me::to_string(static_cast<const LinearChoice&>(choice)) +
         kPaths[static_cast<int>(choice.path)];
}

std::vector<Choice> choices(const Problem& p) {
  const LinearOperand x = x_operand(p, nullptr);
  const LinearOperand w = w_operand(p, nullptr);
  Path path = Path::kStrided;
  if (x.k_aligned && w.k_aligned) {
    path = Path::kAsyncKMajor;
  } else if (x.k_aligned && w.row_aligned) {
    path = Path::kAsyncNMajor;
  }
  std::vector<Choice> all;
  for (const LinearChoice& c : path == Path::kStrided ? tilings(p, kStridedTiles, kFlopsPerUs)
                                                      : tilings(p, kAsyncTiles, kFlopsPerUs)) {
    all.push_back({c, path});
  }
  return all;
}

template <class C, class T>
LinearKernel async_kernel(bool n_major) {
  return {n_major ? linear_async<C, T, true> : linear_async<C, T, false>, C::kThreads};
}

// In the order of the tables above.
template <class T>
LinearKernel kernel_of(const Choice& choice) {
  const bool n_major = choice.path == Path::kAsyncNMajor;
  const LinearKernel async[] = {async_kernel<Large, T>(n_major), async_kernel<Medium, T>(n_major),
                                async_kernel<Small, T>(n_major), async_kernel<Skinny, T>(n_major)};
  const LinearKernel strided[] = {{linear_strided<StridedMedium, T>, StridedMedium::kThreads},
                                  {linear_strided<StridedSmall, T>, StridedSmall::kThreads},
                                  {linear_strided<StridedSkinny, T>, StridedSkinny::kThreads}};
  return choice.path == Path::kStrided ? strided[choice.index] : async[choice.index];
}

Support supports(const Problem& p) {
  if (p.inputs[0].dtype == DType::kF32) return Support::no("takes fp16 and bf16, found f32");
  return support_of(p, choices(p), "mma.sync");
}

std::vector<KernelConfig> configs(const Problem& p) { return configs_of(choices(p)); }

int64_t workspace_bytes(const Problem& p) {
  return split_workspace_bytes(p, *choose(p, choices(p)));
}

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  const Choice choice = *choose(p, choices(p));
  const LinearKernel kernel = p.inputs[0].dtype == DType::kF16 ? kernel_of<__half>(choice)
                                                               : kernel_of<__nv_bfloat16>(choice);
  return prepare_linear(p, buffers, choice, kernel);
}

}  // namespace

extern const KernelEntry linear_cuda_mma;
const KernelEntry linear_cuda_mma = {
    .op = "linear",
    .name = "linear_cuda_mma",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
};

}  // namespace me
