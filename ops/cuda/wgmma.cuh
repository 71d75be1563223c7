// wgmma, Hopper's matrix product of a warpgroup (four warps, the first a multiple of four). For
// code built for sm_90a only. "Asynchronous Warpgroup Level Matrix Instructions" of the PTX ISA
// manual.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace me {

// Orders a warpgroup's register accesses before the products that follow. "wgmma.fence"
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits until at most kPending of the newest groups are unfinished.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// A matrix of 16-bit elements in shared memory, in lines of 128 bytes swizzled as TMA does it
// (CU_TENSOR_MAP_SWIZZLE_128B), eight lines to an atom of 1024 bytes, which `address` is a multiple
// of but for whole steps along K. "Matrix Descriptor Format".
//   K-major: a line is 64 neighbours along K of one row; 16 along K further is 32 bytes further.
//   MN-major: a line is 64 rows at one k; the next 64 rows are `block` bytes further, 16 along K
//   are 2048 bytes.
template <bool kMnMajor>
__device__ inline uint64_t wgmma_operand(uint32_t address, uint32_t block) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kAtom = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kAtom | uint64_t{kMnMajor ? block >> 4 : 1} << 16 | (address & 0x3FFFF) >> 4;
}
template <bool kMnMajor>
constexpr uint32_t kWgmmaStepBytes = kMnMajor ? 2048 : 32;  // between steps of 16 along K

#define ME_D8(i)                                                                      \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define ME_D32(i) ME_D8(i), ME_D8((i) + 8), ME_D8((i) + 16), ME_D8((i) + 24)
#define ME_S16A "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define ME_S16B "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ME_S32B                                                                      \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ME_S32C                                                                      \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define ME_S32D                                                                            \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "   \
  "%125, %126, %127"

// One instruction: `d` operands as text, the numbers of those behind them, and `d` as operands.
#define ME_WGMMA_OF(shape, type, text, a_at, b_at, p_at, ta_at, tb_at, ...)               \
  asm volatile(                                                                           \
      "{\n"                                                                               \
      ".reg .pred accumulate;\n"                                                          \
      "setp.ne.b32 accumulate, " p_at                                                     \
      ", 0;\n"                                                                            \
      "wgmma.mma_async.sync.aligned." shape "k16.f32." type "." type " {" text "}, " a_at \
      ", " b_at ", accumulate, 1, 1, " ta_at ", " tb_at                                   \
      ";\n"                                                                               \
      "}\n"                                                                               \
      : __VA_ARGS__                                                                       \
      : "l"(a), "l"(b), "r"(accumulate ? 1 : 0), "n"(kAMnMajor ? 1 : 0), "n"(kBMnMajor ? 1 : 0))
#define ME_WGMMA(shape, text, a_at, b_at, p_at, ta_at, tb_at, ...)                 \
  if constexpr (std::is_same_v<T, __half>) {                                       \
    ME_WGMMA_OF(shape, "f16", text, a_at, b_at, p_at, ta_at, tb_at, __VA_ARGS__);  \
  } else {                                                                         \
    ME_WGMMA_OF(shape, "bf16", text, a_at, b_at, p_at, ta_at, tb_at, __VA_ARGS__); \
  }

// d = a·b (+ d where `accumulate`) over 16 steps of K: a has 64 rows, b kN; fp32 accumulators. A
// thread's d[4·j + 2·h + i] is row 16·(warp % 4) + 8·h + lane / 4, column 8·j + 2·(lane % 4) + i.
// "Register Fragments and Shared Memory Matrix Layouts"
template <class T, int kN, bool kAMnMajor, bool kBMnMajor>
__device__ inline void wgmma(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 192 || kN == 256);
  if constexpr (kN == 8) {
    ME_WGMMA("m64n8", "%0, %1, %2, %3", "%4", "%5", "%6", "%7", "%8", "+f"(d[0]), "+f"(d[1]),
             "+f"(d[2]), "+f"(d[3]))
  } else if constexpr (kN == 16) {
    ME_WGMMA("m64n16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10", "%11", "%12", ME_D8(0))
  } else if constexpr (kN == 32) {
    ME_WGMMA("m64n32", ME_S16A, "%16", "%17", "%18", "%19", "%20", ME_D8(0), ME_D8(8))
  } else if constexpr (kN == 64) {
    ME_WGMMA("m64n64", ME_S16A ", " ME_S16B, "%32", "%33", "%34", "%35", "%36", ME_D32(0))
  } else if constexpr (kN == 128) {
    ME_WGMMA("m64n128", ME_S16A ", " ME_S16B ", " ME_S32B, "%64", "%65", "%66", "%67", "%68",
             ME_D32(0), ME_D32(32))
  } else if constexpr (kN == 192) {
    ME_WGMMA("m64n192", ME_S16A ", " ME_S16B ", " ME_S32B ", " ME_S32C, "%96", "%97", "%98", "%99",
             "%100", ME_D32(0), ME_D32(32), ME_D32(64))
  } else {
    ME_WGMMA("m64n256", ME_S16A ", " ME_S16B ", " ME_S32B ", " ME_S32C ", " ME_S32D, "%128", "%129",
             "%130", "%131", "%132", ME_D32(0), ME_D32(32), ME_D32(64), ME_D32(96))
  }
}

#undef ME_WGMMA
#undef ME_WGMMA_OF
#undef ME_S32D
#undef ME_S32C
#undef ME_S32B
#undef ME_S16B
#undef ME_S16A
#undef ME_D32
#undef ME_D8

}  // namespace me
