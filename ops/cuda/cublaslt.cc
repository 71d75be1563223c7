#include "ops/cuda/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/cuda/stream.h"

namespace me {
namespace {

// ---- the library ----

// Its functions that are used here; what is declared of them is all that is needed to build.
#define ME_LT_FUNCTIONS(F)                \
  F(cublasLtCreate)                       \
  F(cublasLtDestroy)                      \
  F(cublasLtGetStatusName)                \
  F(cublasLtGetVersion)                   \
  F(cublasLtMatmul)                       \
  F(cublasLtMatmulAlgoGetHeuristic)       \
  F(cublasLtMatmulDescCreate)             \
  F(cublasLtMatmulDescDestroy)            \
  F(cublasLtMatmulDescSetAttribute)       \
  F(cublasLtMatmulPreferenceCreate)       \
  F(cublasLtMatmulPreferenceDestroy)      \
  F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatrixLayoutCreate)           \
  F(cublasLtMatrixLayoutDestroy)          \
  F(cublasLtMatrixLayoutSetAttribute)

struct Library {
#define ME_LT_MEMBER(name) decltype(&::name) name = nullptr;
  ME_LT_FUNCTIONS(ME_LT_MEMBER)
#undef ME_LT_MEMBER
  std::string missing;  // why there is none, or ""
};

Library open_library() {
  Library library;
  void* module = nullptr;
  const char* found = "";
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    module = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    found = name;
    if (module != nullptr) break;
  }
  if (module == nullptr) {
    library.missing = "cuBLASLt is not on this machine (libcublasLt.so.13)";
    return library;
  }
#define ME_LT_LOAD(name)                                                         \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(module, #name)); \
  if (library.name == nullptr) library.missing = fmt::format("{} has no {}", found, #name);
  ME_LT_FUNCTIONS(ME_LT_LOAD)
#undef ME_LT_LOAD
  return library;
}

// Never closed: its handles outlive main().
const Library& library() {
  static const auto* const opened = new Library(open_library());
  return *opened;
}

std::string version() {
  const size_t v = library().cublasLtGetVersion();
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

std::string status_name(cublasStatus_t status) { return library().cublasLtGetStatusName(status); }

void check(cublasStatus_t status, const char* call, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CublasLtError(status, status_name(status), call, __FILE__, line);
}
// ME_LT_CHECK(cublasLtCreate, &handle): throws CublasLtError unless the call succeeds.
#define ME_LT_CHECK(name, ...) check(library().name(__VA_ARGS__), #name, __LINE__)

// Owns what a library's function of the name `kDestroy` takes back.
template <class Handle, auto kDestroy>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (handle_ == nullptr) return;
    const cublasStatus_t status = (library().*kDestroy)(handle_);
    if (status != CUBLAS_STATUS_SUCCESS) {
      std::fprintf(stderr, "releasing a cuBLASLt handle: %s\n", status_name(status).c_str());
    }
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }  // for the function that makes one; requires that it is empty

 private:
  Handle handle_ = nullptr;
};

using LtHandle = Owned<cublasLtHandle_t, &Library::cublasLtDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, &Library::cublasLtMatrixLayoutDestroy>;
using MatmulDesc = Owned<cublasLtMatmulDesc_t, &Library::cublasLtMatmulDescDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, &Library::cublasLtMatmulPreferenceDestroy>;

// The calling thread's device for a while.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    ME_CUDA_CHECK(cudaGetDevice(&before_));
    if (device != before_) ME_CUDA_CHECK(cudaSetDevice(device));
  }
  ~DeviceScope() { static_cast<void>(cudaSetDevice(before_)); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
};

// ---- descriptors ----

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF32:
      break;
  }
  return CUDA_R_32F;
}

cublasLtEpilogue_t epilogue_of(LtEpilogue epilogue) {
  switch (epilogue) {
    case LtEpilogue::kRelu:
      return CUBLASLT_EPILOGUE_RELU;
    case LtEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case LtEpilogue::kReluBias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
    case LtEpilogue::kDefault:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

struct Descriptors {
  MatmulDesc matmul;
  Layout a, b, d;
};

Layout make_layout(const LtMatrix& m, int64_t batch) {
  Layout layout;
  ME_LT_CHECK(cublasLtMatrixLayoutCreate, layout.out(), data_type(m.dtype),
              static_cast<uint64_t>(m.rows), static_cast<uint64_t>(m.columns), m.ld);
  if (batch > 1) {
    const auto count = static_cast<int32_t>(batch);
    ME_LT_CHECK(cublasLtMatrixLayoutSetAttribute, layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                &count, sizeof count);
    ME_LT_CHECK(cublasLtMatrixLayoutSetAttribute, layout.get(),
                CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.batch_stride,
                sizeof m.batch_stride);
  }
  return layout;
}

// fp32 accumulators, and true fp32 products unless the product says otherwise.
Descriptors describe(const LtProduct& p, const void* bias) {
  Descriptors out;
  ME_LT_CHECK(cublasLtMatmulDescCreate, out.matmul.out(),
              p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    ME_LT_CHECK(cublasLtMatmulDescSetAttribute, out.matmul.get(), attribute, &value, sizeof value);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, int32_t{p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(CUBLASLT_MATMUL_DESC_TRANSB, int32_t{p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(epilogue_of(p.epilogue)));
  if (has_bias(p.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    // The default, D's own type, is known to libraries that do not know the attribute.
    if (p.bias_dtype != p.d.dtype) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(data_type(p.bias_dtype)));
    }
  }
  out.a = make_layout(p.a, p.batch);
  out.b = make_layout(p.b, p.batch);
  out.d = make_layout(p.d, p.batch);
  return out;
}

constexpr int64_t kMostAlignment = 256;  // the library's own assumption where it is told nothing

Preference make_preference(const LtProduct& p) {
  Preference out;
  ME_LT_CHECK(cublasLtMatmulPreferenceCreate, out.out());
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    ME_LT_CHECK(cublasLtMatmulPreferenceSetAttribute, out.get(), attribute, &value, sizeof value);
  };
  const auto alignment = [](const LtMatrix& m) {
    return static_cast<uint32_t>(std::min(m.alignment_bytes, kMostAlignment));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kLtWorkspaceBytes));
  // Parts of a split K are added in fp32: a sum kept in a 16-bit D is not the product asked for.
  const uint32_t schemes = p.d.dtype == DType::kF32 ? CUBLASLT_REDUCTION_SCHEME_MASK
                                                    : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.d));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.d));
  return out;
}

// ---- what is kept for the life of the process ----

struct Algorithm {
  cublasLtMatmulAlgo_t algorithm;
  int64_t workspace_bytes = 0;
  double median_us = 0;  // infinite where it does not run
};

struct Known {
  std::vector<Algorithm> algorithms;  // in the heuristics' order
  std::string refusal;                // where there are none
  int best = -1;                      // the fastest; -1: not measured
};

// Destroyed never: at exit the CUDA runtime may be gone before it.
struct State {
  std::mutex mutex;
  std::map<int, LtHandle> handles;  // by device
  std::map<LtProduct, Known> products;
};

State& state() {
  static auto* const kept = new State;
  return *kept;
}

// Requires the state's lock, and `device` to be current.
Result<cublasLtHandle_t> handle_of(int device) {
  LtHandle& handle = state().handles[device];
  if (handle.get() == nullptr) {
    const cublasStatus_t status = library().cublasLtCreate(handle.out());
    if (status != CUBLAS_STATUS_SUCCESS) {
      return Error{ErrorKind::kDevice, fmt::format("cuBLASLt {} does not start on cuda:{}: {}",
                                                   version(), device, status_name(status))};
    }
  }
  return handle.get();
}

std::string describe_types(const LtProduct& p) {
  std::string text = fmt::format("{} by {} to {}, epilogue {}", name_of(p.a.dtype),
                                 name_of(p.b.dtype), name_of(p.d.dtype), name_of(p.epilogue));
  if (has_bias(p.epilogue)) text += fmt::format(" with a {} bias", name_of(p.bias_dtype));
  return text;
}

Known ask_heuristics(cublasLtHandle_t handle, const LtProduct& p) {
  // The heuristics look at the bias's address for its alignment, and at nothing behind it.
  const auto address = static_cast<uintptr_t>(std::min(p.bias_alignment_bytes, kMostAlignment));
  const Descriptors of = describe(p, reinterpret_cast<const void*>(address));
  const Preference preference = make_preference(p);
  std::array<cublasLtMatmulHeuristicResult_t, kLtAlgorithms> results{};
  int count = 0;
  const cublasStatus_t status = library().cublasLtMatmulAlgoGetHeuristic(
      handle, of.matmul.get(), of.a.get(), of.b.get(), of.d.get(), of.d.get(), preference.get(),
      kLtAlgorithms, results.data(), &count);
  const bool refused =
      status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
  if (!refused) check(status, "cublasLtMatmulAlgoGetHeuristic", __LINE__);
  Known known;
  for (int i = 0; !refused && i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& r = results[static_cast<size_t>(i)];
    const auto bytes = static_cast<int64_t>(r.workspaceSize);
    if (r.state == CUBLAS_STATUS_SUCCESS && bytes <= kLtWorkspaceBytes) {
      known.algorithms.push_back({r.algo, bytes});
    }
  }
  if (known.algorithms.empty()) {  // a successful answer may hold none
    known.refusal = fmt::format("cuBLASLt {} has no algorithm for {} ({})", version(),
                                describe_types(p), status_name(status));
  }
  return known;
}

// Requires the state's lock. The answer stays where it is.
Result<Known*> known_of(const LtProduct& p) {
  if (!library().missing.empty()) return Error{ErrorKind::kDevice, library().missing};
  auto at = state().products.find(p);
  if (at == state().products.end()) {
    ME_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, handle_of(p.device));
    at = state().products.emplace(p, ask_heuristics(handle, p)).first;
  }
  if (!at->second.refusal.empty()) return Error{ErrorKind::kDevice, at->second.refusal};
  return &at->second;
}

int64_t most_workspace(const Known& known, LtPick pick) {
  int64_t most = 0;
  for (const Algorithm& a : known.algorithms) {
    most = std::max(most, a.workspace_bytes);
    if (pick == LtPick::kFirst) break;
  }
  return most;
}

// ---- measuring ----

constexpr double kBatchUs = 100;  // of launches between two events, which are good to about 1 us
constexpr int kMostLaunches = 16;
constexpr int kRounds = 7;
constexpr double kHopeless = 2;      // times the best so far, by a single launch,
constexpr double kHopelessUs = 100;  // where that is far above what a launch costs

class Timer {
 public:
  template <class Enqueue>
  double time_us(cudaStream_t stream, const Enqueue& enqueue) {
    ME_CUDA_CHECK(cudaEventRecord(begin_.get(), stream));
    enqueue();
    ME_CUDA_CHECK(cudaEventRecord(end_.get(), stream));
    ME_CUDA_CHECK(cudaEventSynchronize(end_.get()));
    float milliseconds = 0;
    ME_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  Event begin_ = make_event();
  Event end_ = make_event();
};

// run(algorithm, stream) -> cublasStatus_t. Measures as a session runs: replays of a captured
// graph, caches warm. The algorithms take turns, so that what disturbs one disturbs all.
template <class Run>
void measure(std::vector<Algorithm>& algorithms, const Run& run) {
  struct Candidate {
    Algorithm* algorithm;
    int launches;
    CudaGraphExec graph;
    std::vector<double> us;
  };
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const Stream stream;
  Timer timer;
  std::vector<Candidate> candidates;
  double best_us = kNever;
  for (Algorithm& algorithm : algorithms) {
    algorithm.median_us = kNever;
    const cublasStatus_t status = run(algorithm, stream.get());  // the first also loads its kernels
    ME_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
    if (status != CUBLAS_STATUS_SUCCESS) continue;
    const double once_us = timer.time_us(stream.get(), [&] { run(algorithm, stream.get()); });
    if (once_us > kHopelessUs && once_us > kHopeless * best_us) continue;
    best_us = std::min(best_us, once_us);
    const auto launches =
        static_cast<int>(std::clamp(kBatchUs / std::max(once_us, 1.0), 1.0, double{kMostLaunches}));
    try {
      const CudaGraph graph = record(stream.get(), [&] {
        for (int i = 0; i < launches; ++i) {
          check(run(algorithm, stream.get()), "cublasLtMatmul", __LINE__);
        }
      });
      candidates.push_back({&algorithm, launches, instantiate(graph), {}});
    } catch (const std::runtime_error&) {  // cannot be captured: of no use to a session
      static_cast<void>(cudaGetLastError());
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& c : candidates) {
      c.us.push_back(timer.time_us(stream.get(), [&] {
        ME_CUDA_CHECK(cudaGraphLaunch(c.graph.get(), stream.get()));
      }) / c.launches);
    }
  }
  for (Candidate& c : candidates) {
    std::ranges::nth_element(c.us, c.us.begin() + kRounds / 2);
    c.algorithm->median_us = c.us[kRounds / 2];
  }
}

}  // namespace

Result<LtOffer> lt_offer(const LtProduct& product, LtPick pick) {
  if (auto refusal = lt_refusal(product)) return Error{ErrorKind::kDevice, std::move(*refusal)};
  if (!library().missing.empty()) return Error{ErrorKind::kDevice, library().missing};
  const std::scoped_lock lock(state().mutex);
  const DeviceScope device(product.device);
  ME_ASSIGN_OR_RETURN(const Known* const known, known_of(product));
  const size_t count = known->algorithms.size();
  std::string which = pick == LtPick::kFirst ? "the first" : "the fastest";
  if (pick == LtPick::kTuned && known->best >= 0) {
    which = fmt::format("number {} ({:.4g} us, the first {:.4g} us)", known->best + 1,
                        known->algorithms[static_cast<size_t>(known->best)].median_us,
                        known->algorithms[0].median_us);
  }
  return LtOffer{.algorithms = static_cast<int>(count),
                 .workspace_bytes = most_workspace(*known, pick),
                 .text = fmt::format("cuBLASLt {}, epilogue {}, {} of {} {}", version(),
                                     name_of(product.epilogue), which, count,
                                     count == 1 ? "algorithm" : "algorithms")};
}

struct LtMatmul::Impl {
  cublasLtHandle_t handle = nullptr;
  Descriptors of;
  Algorithm algorithm;
  float alpha = 1;
  void* workspace = nullptr;

  cublasStatus_t run(const Algorithm& with, const Pointers& at, cudaStream_t stream) const {
    const float beta = 0;  // C, which is D, is not read
    return library().cublasLtMatmul(handle, of.matmul.get(), &alpha, at.a, of.a.get(), at.b,
                                    of.b.get(), &beta, at.d, of.d.get(), at.d, of.d.get(),
                                    &with.algorithm, workspace,
                                    static_cast<size_t>(with.workspace_bytes), stream);
  }
};

LtMatmul::LtMatmul(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LtMatmul::~LtMatmul() = default;
LtMatmul::LtMatmul(LtMatmul&&) noexcept = default;
LtMatmul& LtMatmul::operator=(LtMatmul&&) noexcept = default;

Result<LtMatmul> LtMatmul::prepare(const LtProduct& product, LtPick pick, float alpha,
                                   const void* bias, const Pointers& at, void* workspace) {
  const std::scoped_lock lock(state().mutex);  // also: one measurement at a time
  const DeviceScope device(product.device);
  ME_ASSIGN_OR_RETURN(Known* const known, known_of(product));
  auto impl = std::make_unique<Impl>();
  ME_ASSIGN_OR_RETURN(impl->handle, handle_of(product.device));
  impl->of = describe(product, bias);
  impl->alpha = alpha;
  impl->workspace = workspace;

  size_t index = 0;
  if (pick == LtPick::kTuned) {
    if (known->best < 0) {
      measure(known->algorithms,
              [&](const Algorithm& a, cudaStream_t s) { return impl->run(a, at, s); });
      const auto fastest = std::ranges::min_element(known->algorithms, {}, &Algorithm::median_us);
      if (!std::isfinite(fastest->median_us)) {
        return Error{ErrorKind::kDevice,
                     fmt::format("cuBLASLt {}: none of its {} algorithms for {} runs", version(),
                                 known->algorithms.size(), describe_types(product))};
      }
      known->best = static_cast<int>(fastest - known->algorithms.begin());
    }
    index = static_cast<size_t>(known->best);
  }
  impl->algorithm = known->algorithms[index];
  const Stream stream;
  check(impl->run(impl->algorithm, at, stream.get()), "cublasLtMatmul", __LINE__);
  ME_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  return LtMatmul(std::move(impl));
}

void LtMatmul::enqueue(const Pointers& at, void* stream) const {
  check(impl_->run(impl_->algorithm, at, static_cast<cudaStream_t>(stream)), "cublasLtMatmul",
        __LINE__);
}

}  // namespace me
