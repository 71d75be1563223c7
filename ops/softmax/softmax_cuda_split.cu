// softmax_cuda_split: y[M, N] for few long rows, each row cut into T = ceil(N / C) chunks.
//
//   1. partials  M·T blocks   (m, l) of the chunk                       scratch [M, T]
//   2. merge     M blocks     (m, l) of the row                         scratch [M]
//   3. apply     M·T blocks   rereads x, y = exp(x - m)·(1/l)
//
// A chunk normalised by its own (m, l) would be wrong: only step 3, with the row's pair, writes y.
// The launches are ordered by their stream and by nothing else. Rows of up to 256 chunks skip step
// 2: each block of step 3 merges its row's partials itself, which costs less than a launch that
// waits, and the first one of the row leaves the pair in the scratch all the same. Scratch is
// 8·M·(T + 1) bytes of the workspace.
//
// Thread t of 128 holds 8 logits of the chunk, as 16-byte vectors t, t + 128, .. wherever x lies.
//
// Numerics: fp32 throughout, one rounding at the store. C and the blocks are fixed and each thread
// merges its partials from left to right, so the bits depend on the row alone.
#include <algorithm>
#include <string>

#include "ops/base/kernel.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/reduce.cuh"
#include "ops/softmax/cuda_cost.h"
#include "ops/softmax/cuda_rows.cuh"
#include "ops/softmax/split.h"

namespace me {
namespace {

constexpr int kThreads = 128;
constexpr int kItems = static_cast<int>(kSoftmaxChunk) / kThreads;
constexpr int kMergeThreads = 256;
constexpr int64_t kMergedInPlace = 256;  // chunks; two to a thread

constexpr float kNone = -std::numeric_limits<float>::infinity();  // counts for nothing

// This thread's logits of chunk t of a row.
template <class T, int kVectors>
__device__ void load_chunk(const T* x, const RowAccess& from, const SoftmaxSplit& split,
                           int64_t row, int64_t t, int thread, Vector<T> (&to)[kVectors]) {
  load_row(x + from.rows.offset(row) + split.begin(t) * from.rows.stride, from.rows.stride,
           from.wide, split.size(t), thread, kThreads, from_f32<T>(kNone), to);
}

// The normaliser of a row from its partials, for every thread of the block.
__device__ Normalizer merge_row(const Normalizer* partials, int64_t chunks, Team<true>& team) {
  Normalizer own;
  for (int64_t t = team.thread(); t < chunks; t += team.size()) own = merge(own, partials[t]);
  return merge_team(team, own);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_partials(const T* x, const __grid_constant__ RowAccess from, SoftmaxSplit split,
                     Normalizer* partials) {
  __shared__ Team<true>::Scratch scratch;
  Team<true> team(scratch);
  const int64_t chunks = split.chunks();
  for (int64_t i = blockIdx.x; i < split.rows * chunks; i += gridDim.x) {
    Vector<T> held[kItems / Vector<T>::kSize];
    load_chunk(x, from, split, i / chunks, i % chunks, team.thread(), held);
    float v[kItems];
    widen(held, v);
    const Normalizer chunk = merge_team(team, absorb(Normalizer(), v));
    if (team.thread() == 0) partials[i] = chunk;
  }
}

__global__ void __launch_bounds__(kMergeThreads)
    softmax_merge(SoftmaxSplit split, const Normalizer* partials, Normalizer* totals) {
  __shared__ Team<true>::Scratch scratch;
  Team<true> team(scratch);
  for (int64_t row = blockIdx.x; row < split.rows; row += gridDim.x) {
    const Normalizer total = merge_row(partials + row * split.chunks(), split.chunks(), team);
    if (team.thread() == 0) totals[row] = total;
  }
}

// kMerge: the totals are still to be made.
template <class T, bool kMerge>
__global__ void __launch_bounds__(kThreads)
    softmax_apply(const T* x, T* y, const __grid_constant__ RowAccess from,
                  const __grid_constant__ RowAccess to, SoftmaxSplit split,
                  const Normalizer* partials, Normalizer* totals) {
  __shared__ Team<true>::Scratch scratch;
  Team<true> team(scratch);
  const int64_t chunks = split.chunks();
  for (int64_t i = blockIdx.x; i < split.rows * chunks; i += gridDim.x) {
    const int64_t row = i / chunks;
    const int64_t t = i % chunks;
    Vector<T> held[kItems / Vector<T>::kSize];
    load_chunk(x, from, split, row, t, team.thread(), held);  // on its way during the merge
    Normalizer total;
    if constexpr (kMerge) {
      total = merge_row(partials + row * chunks, chunks, team);
      if (t == 0 && team.thread() == 0) totals[row] = total;
    } else {
      total = totals[row];
    }
    float v[kItems];
    widen(held, v);
    normalize(total, v);
    narrow(v, held);
    store_row(y + to.rows.offset(row) + split.begin(t) * to.rows.stride, to.rows.stride, to.wide,
              split.size(t), team.thread(), kThreads, held);
  }
}

SoftmaxSplit split_of(const Problem& p) {
  const Rows rows = rows_of(p.inputs[0]);
  return {rows.count, rows.length};
}

bool merges_in_place(const SoftmaxSplit& split) { return split.chunks() <= kMergedInPlace; }

unsigned grid_of(int64_t blocks) { return static_cast<unsigned>(std::min(blocks, kMostBlocks)); }

template <class T>
std::unique_ptr<PreparedOp> prepare_as(const Problem& p, const Buffers& buffers) {
  const SoftmaxSplit split = split_of(p);
  if (split.rows * split.length == 0) {
    return make_prepared([](void*) {});
  }
  const auto* x = static_cast<const T*>(buffers.inputs[0]);
  auto* y = static_cast<T*>(buffers.outputs[0]);
  auto* partials = static_cast<Normalizer*>(buffers.workspace);
  auto* totals = partials + split.rows * split.chunks();
  const bool merged = !merges_in_place(split);
  auto* const apply = merged ? softmax_apply<T, false> : softmax_apply<T, true>;
  load_kernel(softmax_partials<T>);
  load_kernel(softmax_merge);
  load_kernel(apply);
  return make_prepared([=, from = row_access(p.inputs[0]), to = row_access(p.outputs[0]),
                        blocks = grid_of(split.rows * split.chunks()),
                        row_blocks = grid_of(split.rows)](void* stream_pointer) {
    const cudaStream_t stream = as_cuda_stream(stream_pointer);
    softmax_partials<T><<<blocks, kThreads, 0, stream>>>(x, from, split, partials);
    check_launch();
    if (merged) {
      softmax_merge<<<row_blocks, kMergeThreads, 0, stream>>>(split, partials, totals);
      check_launch();
    }
    apply<<<blocks, kThreads, 0, stream>>>(x, y, from, to, split, partials, totals);
    check_launch();
  });
}

Support supports(const Problem& p) {
  const SoftmaxSplit split = split_of(p);
  const int launches = merges_in_place(split) ? 2 : 3;
  return Support::yes(softmax_split_cost_us(p, split.rows * split.chunks(), launches),
                      std::to_string(split.rows) + " rows of " + std::to_string(split.length) +
                          " in chunks of " + std::to_string(split.chunk) + ", " +
                          std::to_string(split.chunks()) + " chunks to a row, in " +
                          std::to_string(launches) + " launches");
}

int64_t workspace_bytes(const Problem& p) { return split_of(p).scratch_bytes(); }

Result<std::unique_ptr<PreparedOp>> prepare(const Problem& p, const Buffers& buffers) {
  return with_dtype(p.outputs[0].dtype,
                    [&](auto dtype) { return prepare_as<CudaElement<dtype()>>(p, buffers); });
}

}  // namespace

extern const KernelEntry softmax_cuda_split;
const KernelEntry softmax_cuda_split = {
    .op = "softmax",
    .name = "softmax_cuda_split",
    .backend = Backend::kCuda,
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .prepare = prepare,
};

}  // namespace me
