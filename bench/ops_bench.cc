// ops_bench: every CPU kernel of the registry over a table of shapes. A kernel is checked against
// the oracle before it is timed; one that fails is not timed, and the program exits with 1.
//
//   ops_bench [--threads=N] [Google Benchmark's own flags]
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include "bench/bench_case.h"
#include "ops/registry.h"

namespace me::bench {
namespace {

bool any_failed = false;

std::vector<Dim> numbers(const Dims& sizes) {
  std::vector<Dim> dims;
  for (int64_t size : sizes) dims.push_back({size});
  return dims;
}

std::vector<CaseSpec> make_cases() {
  std::vector<CaseSpec> cases;

  const auto linear = [&](int64_t m, int64_t n, int64_t k, bool nk) {
    cases.push_back({.op = "linear",
                     .name = fmt::format("{}x{}x{}/{}", m, n, k, nk ? "NK" : "KN"),
                     .attrs = {{"weight_layout", std::string(nk ? "NK" : "KN")},
                               {"activation", std::string("RELU")}},
                     .shapes = {{m, k}, nk ? Dims{n, k} : Dims{k, n}, {n}},
                     .sampled = {0, {{0}}}});
  };
  for (bool nk : {false, true}) {
    linear(1, 512, 784, nk);
    linear(8, 1024, 1024, nk);
    linear(64, 256, 784, nk);
    linear(512, 512, 512, nk);
    linear(1024, 1024, 1024, nk);
    linear(333, 777, 1000, nk);
  }

  const auto attention = [&](int64_t heads, int64_t kv_heads, int64_t q_len, int64_t kv_len,
                             int64_t dim) {
    const int64_t group = heads / kv_heads;
    cases.push_back(
        {.op = "attention",
         .name = fmt::format("h{}_kv{}_q{}_k{}_d{}", heads, kv_heads, q_len, kv_len, dim),
         .attrs = {{"causal", true}},
         .shapes = {{1, heads, q_len, dim}, {1, kv_heads, kv_len, dim}, {1, kv_heads, kv_len, dim}},
         // Query head h reads head h / group of k and v.
         .sampled = {1, {{0}, {1, group}, {2, group}}},
         .constant_weights = false});
  };
  attention(8, 8, 512, 512, 64);
  attention(4, 4, 2048, 2048, 64);
  attention(32, 8, 1, 4096, 128);

  const auto softmax = [&](const char* name, const Dims& shape, const Dims& strides) {
    cases.push_back({.op = "softmax",
                     .name = fmt::format("{}{}", name, to_string(shape)),
                     .shapes = {shape},
                     .strides = {strides},
                     .constant_weights = false});
  };
  softmax("rows", {4096, 1024}, {});
  softmax("transposed", {1024, 1024}, {1, 1024});
  softmax("long", {4, 32769}, {});
  cases.push_back({.op = "softmax_grad",
                   .name = "rows[4096, 1024]",
                   .shapes = {{4096, 1024}, {4096, 1024}},
                   .constant_weights = false});

  cases.push_back({.op = "add",
                   .name = "[1024, 1024]",
                   .shapes = {{1024, 1024}, {1024, 1024}},
                   .constant_weights = false});
  cases.push_back({.op = "transpose",
                   .name = "[1024, 1000]",
                   .attrs = {{"permutation", std::vector<int64_t>{1, 0}}},
                   .shapes = {{1024, 1000}}});
  cases.push_back({.op = "transpose",
                   .name = "heads[512, 16, 64]",
                   .attrs = {{"permutation", std::vector<int64_t>{1, 0, 2}}},
                   .shapes = {{512, 16, 64}}});
  cases.push_back({.op = "reshape",
                   .name = "of_transposed[1024, 1024]",
                   .attrs = {{"dims", numbers({-1})}},
                   .shapes = {{1024, 1024}},
                   .strides = {{1, 1024}}});
  cases.push_back({.op = "slice",
                   .name = "columns[1024, 1024]",
                   .attrs = {{"axis", int64_t{1}}, {"start", int64_t{256}}, {"end", int64_t{768}}},
                   .shapes = {{1024, 1024}}});
  cases.push_back({.op = "broadcast",
                   .name = "rows[1024, 1024]",
                   .attrs = {{"dims", numbers({1024, 1024})}},
                   .shapes = {{1024}}});
  return cases;
}

// Google Benchmark calls a benchmark several times while it looks for the number of iterations; the
// case that was prepared and checked last is kept for the next call.
struct Ready {
  std::string name;
  std::unique_ptr<BenchCase> bench_case;
  std::unique_ptr<PreparedOp> op;
  std::string fault;
};

const Ready& make_ready(const std::string& name, const KernelEntry& kernel, const CaseSpec& spec,
                        DType dtype, int threads) {
  static Ready ready;
  if (ready.name == name) return ready;
  ready = {};
  ready.name = name;
  ready.bench_case = std::make_unique<BenchCase>(spec, dtype, threads);
  BenchCase& c = *ready.bench_case;
  if (const Support support = kernel.supports(c.problem()); !support.ok) {
    ready.fault = support.reason;  // a refusal, not a failure
    return ready;
  }
  auto op = c.prepare(kernel);
  if (!op.ok()) {
    ready.fault = "not prepared: " + op.error().to_string();
  } else {
    ready.op = std::move(op).value();
    c.poison();
    ready.op->enqueue(nullptr);
    if (std::string fault = c.check(); !fault.empty()) ready.fault = "wrong: " + fault;
  }
  any_failed = any_failed || !ready.fault.empty();
  return ready;
}

void run(benchmark::State& state, const std::string& name, const KernelEntry& kernel,
         const CaseSpec& spec, DType dtype, int threads) {
  const Ready& ready = make_ready(name, kernel, spec, dtype, threads);
  if (!ready.fault.empty()) {
    state.SkipWithError(ready.fault.c_str());
    return;
  }
  for (auto _ : state) {
    ready.op->enqueue(nullptr);
    benchmark::ClobberMemory();
  }
  const Problem& problem = ready.bench_case->problem();
  const Work work = problem.op->work(problem);
  using benchmark::Counter;
  state.counters["flops"] = Counter(work.flops, Counter::kIsIterationInvariantRate);
  state.counters["bytes"] = Counter(work.bytes, Counter::kIsIterationInvariantRate);
}

// Removes --threads=N from the arguments; nothing where N is not a number of threads.
std::optional<int> take_threads(int* argc, char** argv) {
  constexpr std::string_view kFlag = "--threads=";
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const std::string_view arg = argv[i];
    if (!arg.starts_with(kFlag)) {
      argv[kept++] = argv[i];
      continue;
    }
    const std::string_view text = arg.substr(kFlag.size());
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
    if (error != std::errc() || end != text.data() + text.size() || threads < 1) {
      return std::nullopt;
    }
  }
  *argc = kept;
  return threads;
}

int main(int argc, char** argv) {
  const auto threads = take_threads(&argc, argv);
  if (!threads) {
    std::fprintf(stderr, "--threads: expected a number of 1 or more\n");
    return 2;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("threads", std::to_string(*threads));
  const std::vector<CaseSpec> cases = make_cases();
  for (const CaseSpec& spec : cases) {
    for (const KernelEntry* kernel : kernels()) {
      if (kernel->op != spec.op || kernel->backend != Backend::kCpu) continue;
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        const std::string name = fmt::format("{}/{}/{}", kernel->name, spec.name, name_of(dtype));
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=, &spec, threads = *threads](benchmark::State& state) {
                                       run(state, name, *kernel, spec, dtype, threads);
                                     })
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return any_failed ? 1 : 0;
}

}  // namespace
}  // namespace me::bench

int main(int argc, char** argv) { return me::bench::main(argc, argv); }
