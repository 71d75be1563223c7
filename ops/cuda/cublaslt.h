// cuBLASLt as this project uses it: products in the library's own column-major terms, an algorithm
// picked for each. The library is opened when first asked for, so that nothing links against it;
// cublaslt.cc is the only file that includes its header.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "ops/base/status.h"
#include "ops/cuda/lt_product.h"

namespace me {

// A call of the library that failed: what was called, where, and the library's name for it.
class CublasLtError : public std::runtime_error {
 public:
  CublasLtError(int status, const std::string& status_name, const char* call, const char* file,
                int line)
      : std::runtime_error(std::string(call) + " failed at " + file + ":" + std::to_string(line) +
                           ": " + status_name),
        status_(status) {}

  int status() const { return status_; }  // a cublasStatus_t

 private:
  int status_;
};

constexpr int kLtAlgorithms = 32;                         // asked for
constexpr int64_t kLtWorkspaceBytes = int64_t{64} << 20;  // each may take at most

enum class LtPick : uint8_t {
  kFirst,  // what the library's heuristics put first
  kTuned,  // the fastest of all that they name, measured once per process
};

struct LtOffer {
  int algorithms = 0;           // 1 or more
  int64_t workspace_bytes = 0;  // at most kLtWorkspaceBytes
  std::string text;             // "cuBLASLt 13.1.0, epilogue BIAS, the first of 8 algorithms"
};

// What the library offers for a product; the error's message says why nothing. The answer is kept
// for the life of the process. Throws where a call fails that should not.
Result<LtOffer> lt_offer(const LtProduct& product, LtPick pick);

// A product with its algorithm, ready to be enqueued. Move-only.
class LtMatmul {
 public:
  struct Pointers {
    const void* a = nullptr;
    const void* b = nullptr;
    void* d = nullptr;
  };

  // Requires lt_offer(product, pick) and `workspace` of its size. Runs the product on `at`, once or
  // (kTuned, the first time for this product) often, and waits for it: D and the workspace are
  // overwritten, and the algorithm's kernels are loaded, as a capture needs it.
  static Result<LtMatmul> prepare(const LtProduct& product, LtPick pick, float alpha,
                                  const void* bias, const Pointers& at, void* workspace);
  ~LtMatmul();
  LtMatmul(LtMatmul&&) noexcept;
  LtMatmul& operator=(LtMatmul&&) noexcept;

  // `stream` is a cudaStream_t. Allocates nothing; legal under capture. The pointers are aligned as
  // the product says.
  void enqueue(const Pointers& at, void* stream) const;

 private:
  struct Impl;
  explicit LtMatmul(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace me
