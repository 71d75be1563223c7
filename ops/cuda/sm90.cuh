// Inline PTX of compute capability 9.0: barriers in shared memory, the bulk tensor copy engine
// (TMA), clusters, programmatic dependent launch. Each function is one instruction or the usual
// loop around it; the section named is of the PTX ISA manual.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/ptx.cuh"

namespace me {

// ---- mbarrier: "Parallel Synchronization and Communication Instructions: mbarrier" ----

__device__ inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}
// Makes initialised barriers visible to the copy engine and to the cluster. "fence.mbarrier_init"
__device__ inline void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
// One arrival, and `bytes` more that the copy engine has to bring before the phase can end.
__device__ inline void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Waits for the end of the phase with this parity; a fresh barrier has ended phase 1.
__device__ inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

// ---- TMA: "Data Movement and Conversion Instructions: cp.async.bulk.tensor" ----

__device__ inline void tma_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(map) : "memory");
}
// The box at (x, y), x along the contiguous axis, into shared memory; its bytes count at `barrier`.
__device__ inline void tma_load(uint32_t to, const CUtensorMap* map, int x, int y,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];\n" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// A box from shared memory to (x, y); what lies outside the tensor is dropped.
__device__ inline void tma_store(const CUtensorMap* map, int x, int y, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n" ::"l"(
          map),
      "r"(x), "r"(y), "r"(from)
      : "memory");
}
__device__ inline void tma_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
// Waits until the shared memory of all but this thread's newest kPending groups has been read.
template <int kPending>
__device__ inline void tma_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}
// Ordinary stores to shared memory become visible to the copy engine. "fence.proxy.async"
__device__ inline void async_proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// stmatrix: four 8x8 matrices of 16-bit elements, transposed on the way; lane i gives the address
// of row i % 8 of what matrix i / 8 becomes. "Warp Level Matrix Store Instruction: stmatrix"
__device__ inline void stmatrix_transposed_x4(uint32_t to, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(to),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// ---- barriers of some threads, clusters, launches ----

// Named barrier `id` of `threads` threads. "bar.sync"
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// "barrier.cluster": all threads of the cluster. Orders execution and, after mbarrier_init_fence(),
// initialised barriers, but no other memory, which would take a fence of all of it.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;\n" ::: "memory");
}
// Four words into the shared memory of block `rank` of the cluster, at what is `to` here; 16 bytes
// that count at that block's `barrier`. "st.async", "mapa"
__device__ inline void store_to_block(uint32_t to, const float4& words, uint32_t barrier,
                                      uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote, %0, %6;\n"
      "mapa.shared::cluster.u32 remote_barrier, %5, %6;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [remote], "
      "{%1, %2, %3, %4}, [remote_barrier];\n"
      "}\n" ::"r"(to),
      "f"(words.x), "f"(words.y), "f"(words.z), "f"(words.w), "r"(barrier), "r"(rank)
      : "memory");
}

// "setmaxnreg": the warpgroup keeps or gets this many registers to a thread. Only in kernels whose
// launch bounds fix the number at the start.
template <int kCount>
__device__ inline void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
__device__ inline void claim_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

// "griddepcontrol": the next kernel of the stream, if it was launched to overlap, may start once
// every block has said so or has ended; and waits until the kernels before have ended and what they
// wrote is visible.
__device__ inline void let_dependents_start() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}
__device__ inline void wait_for_dependencies() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

}  // namespace me
