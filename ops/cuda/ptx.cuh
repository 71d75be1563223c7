// The project's inline PTX for compute capability 8.0 and up. Each function is one instruction; the
// section named is of the PTX ISA manual.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace me {

// Address of shared memory as the instructions below take it.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A word, or half of one, of shared memory. "ld", "st"
__device__ inline uint32_t load_shared(uint32_t from) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(word) : "r"(from) : "memory");
  return word;
}
__device__ inline void store_shared(uint32_t to, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(to), "r"(word) : "memory");
}
__device__ inline void store_shared(uint32_t to, uint16_t half) {
  asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(to), "h"(half) : "memory");
}

// cp.async: 16 bytes from global to shared memory, both 16-byte aligned, past L1. "Data Movement
// and Conversion Instructions: cp.async". Where `inside` is false nothing is read and zeros are
// written.
__device__ inline void cp_async_16(uint32_t to, const void* from, bool inside = true) {
  asm volatile(
      "{\n"
      ".reg .pred outside;\n"
      "setp.eq.u32 outside, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, outside;\n"
      "}\n" ::"r"(to),
      "l"(from), "r"(inside ? 1u : 0u)
      : "memory");
}
// The same of 4 bytes, which stay in L1 for the neighbours of their line.
__device__ inline void cp_async_4(uint32_t to, const void* from, bool inside = true) {
  asm volatile(
      "{\n"
      ".reg .pred outside;\n"
      "setp.eq.u32 outside, %2, 0;\n"
      "cp.async.ca.shared.global [%0], [%1], 4, outside;\n"
      "}\n" ::"r"(to),
      "l"(from), "r"(inside ? 1u : 0u)
      : "memory");
}
// The first `bytes` of 16, and zeros behind them. For the ends of rows only: the compiler makes
// some ten instructions of it.
__device__ inline void cp_async_up_to_16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits until at most kPending of this thread's newest groups are unfinished.
template <int kPending>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// ldmatrix: four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix
// i / 8. "Warp Level Matrix Load Instruction: ldmatrix".
__device__ inline void ldmatrix_x4(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

// mma.m16n8k16: d += a·b with fp32 accumulators; T is __half or __nv_bfloat16. "Matrix Fragments
// for mma.m16n8k16 with floating point type".
template <class T>
__device__ inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1);
template <>
__device__ inline void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// To TF32, whose low 13 bits are zero: to nearest, ties away from zero. "cvt"
__device__ inline uint32_t to_tf32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(y) : "f"(x));
  return y;
}
// mma.m16n8k8 of TF32: d += a·b. "Matrix Fragments for mma.m16n8k8"
__device__ inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// max.NaN: the larger one, NaN where one of them is NaN; +0 is larger than -0. "Floating Point
// Instructions: max".
__device__ inline float max_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// ex2.approx: 2^x within 2 units in the last place; subnormal results are kept. "Floating Point
// Instructions: ex2".
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace me
