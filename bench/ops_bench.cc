// ops_bench: the kernels of the registry on one device, over the table in cases.cc. A kernel is
// checked against the oracle before it is timed. All kernels of a case that the filter leaves are
// timed in turns, each as replays of many launches over rotated memory (engine/runtime's
// time_in_turns); what Google Benchmark reports as one iteration is the median of those samples,
// per launch.
//
//   ops_bench [--device=cpu|cuda] [--threads=N] [--configs] [--warm]
//             [Google Benchmark's own flags]
//   ops_bench [--device=cpu|cuda] --list-cases=json
//
// Names are OP/CASE/TYPE/KERNEL, and with --configs also KERNEL[CONFIGURATION] for each of the ways
// in which a kernel can run the case; --benchmark_filter takes a regular expression on them ("-" in
// front: all others). With --warm memory is not rotated: a launch finds in the cache what fits of
// its operands. Exits with 1 where a kernel is wrong, 2 for wrong usage, 3 where there is no such
// device, 4 where something failed. A refusal is no failure.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <thread>

#include "bench/arms.h"
#include "bench/bench_case.h"
#include "engine/runtime/ceilings.h"
#include "engine/runtime/provenance.h"
#include "ops/registry.h"

namespace me::bench {
namespace {

constexpr int kExitWrong = 1;
constexpr int kExitUsage = 2;
constexpr int kExitNoDevice = 3;
constexpr int kExitFailed = 4;

struct Options {
  Backend backend = Backend::kCpu;
  int threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  bool configs = false;  // all configurations of a kernel, not only its own choice
  CacheState caches = CacheState::kCold;
  bool lists_cases = false;
  bool lists_tests = false;  // Google Benchmark's flag: nothing will be measured
};

// Takes the program's own flags out of the arguments; nothing, with a message, where one is wrong.
std::optional<Options> take_options(int* argc, char** argv) {
  Options options;
  int kept = 1;
  for (int i = 1; i < *argc; ++i) {
    const std::string_view arg = argv[i];
    const std::string_view value = arg.substr(std::min(arg.size(), arg.find('=') + 1));
    bool right = true;
    if (arg.starts_with("--device=")) {
      right = value == "cpu" || value == "cuda";
      options.backend = value == "cuda" ? Backend::kCuda : Backend::kCpu;
    } else if (arg.starts_with("--threads=")) {
      const char* last = value.data() + value.size();
      const auto [end, error] = std::from_chars(value.data(), last, options.threads);
      right = error == std::errc() && end == last && options.threads >= 1;
    } else if (arg == "--configs") {
      options.configs = true;
    } else if (arg == "--warm") {
      options.caches = CacheState::kWarm;
    } else if (arg.starts_with("--list-cases")) {
      right = arg == "--list-cases=json";
      options.lists_cases = true;
    } else {
      if (arg.starts_with("--benchmark_list_tests")) options.lists_tests = true;
      argv[kept++] = argv[i];
    }
    if (!right) {
      fmt::print(stderr, "{}: expected --device=cpu|cuda, --threads=N, --configs, --warm or {}\n",
                 arg, "--list-cases=json");
      return std::nullopt;
    }
  }
  *argc = kept;
  return options;
}

nlohmann::json to_json(const Dims& dims) { return std::vector<int64_t>(dims.begin(), dims.end()); }

nlohmann::json to_json(const AttrValue& value) {
  const auto convert = [](const auto& v) -> nlohmann::json {
    if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::vector<Dim>>) {
      auto sizes = nlohmann::json::array();
      for (const Dim& dim : v) sizes.push_back(dim.size);
      return sizes;
    } else {
      return v;
    }
  };
  return std::visit(convert, value);
}

void list_cases(const DeviceInfo& device) {
  auto list = nlohmann::json::array();
  for (const CaseSpec& spec : cases_for(device.backend)) {
    for (DType dtype : spec.dtypes) {
      const CaseProblem c = problem_of(spec, dtype, device);
      const Work work = c.problem.op->work(c.problem);
      auto entry = nlohmann::json{{"case", key_of(spec, dtype)},
                                  {"op", spec.op},
                                  {"dtype", name_of(dtype)},
                                  {"attrs", nlohmann::json::object()},
                                  {"inputs", nlohmann::json::array()},
                                  {"flops", work.flops},
                                  {"bytes", work.bytes}};
      for (const auto& [name, value] : spec.attrs) entry["attrs"][name] = to_json(value);
      for (const TensorDesc& t : c.problem.inputs) {
        entry["inputs"].push_back({{"shape", to_json(t.shape)}, {"strides", to_json(t.strides)}});
      }
      list.push_back(std::move(entry));
    }
  }
  fmt::print("{}\n", list.dump(1));
}

struct Ceilings {
  std::optional<double> copy;      // bytes/s
  std::map<DType, double> matrix;  // FLOP/s
};

std::string name_of(const CaseSpec& spec, DType dtype, const Arm& arm) {
  const std::string name = fmt::format("{}/{}", key_of(spec, dtype), arm.kernel->name);
  return arm.config.empty() ? name : fmt::format("{}[{}]", name, arm.config);
}

// The kernels of a case, measured together when the first of them is asked for.
class Group {
 public:
  Group(std::shared_ptr<Device> device, CaseSpec spec, DType dtype, std::vector<Arm> arms,
        CacheState caches)
      : device_(std::move(device)),
        spec_(std::move(spec)),
        dtype_(dtype),
        arms_(std::move(arms)),
        caches_(caches) {}

  const std::string& op() const { return spec_.op; }
  DType dtype() const { return dtype_; }
  size_t size() const { return arms_.size(); }
  std::string name(size_t i) const { return name_of(spec_, dtype_, arms_[i]); }

  // Of kernel i. Asked once more it measures the case once more: a repetition is no copy.
  const CaseResult& result(size_t i) {
    if (!result_ || reported_[i]) {
      result_ = measure(device_, spec_, dtype_, arms_, caches_);
      reported_.assign(arms_.size(), false);
    }
    reported_[i] = true;
    return *result_;
  }

 private:
  std::shared_ptr<Device> device_;
  CaseSpec spec_;
  DType dtype_;
  std::vector<Arm> arms_;
  CacheState caches_;
  std::optional<CaseResult> result_;
  std::vector<bool> reported_;
};

class Program {
 public:
  Program(const Options& options, std::shared_ptr<Device> device)
      : options_(options), device_(std::move(device)) {}

  int run() {
    const std::string& filter = benchmark::GetBenchmarkFilter();
    try {
      make_groups(filter);
    } catch (const std::regex_error& e) {
      fmt::print(stderr, "--benchmark_filter={}: {}\n", filter, e.what());
      return kExitUsage;
    }
    if (!options_.lists_tests) prepare();
    benchmark::RunSpecifiedBenchmarks(".");  // make_groups() has filtered
    return status_;
  }

 private:
  void make_groups(std::string filter) {
    const bool negative = filter.starts_with('-');
    if (negative) filter.erase(0, 1);
    const std::regex wanted(filter.empty() || filter == "all" ? "." : filter);
    for (const CaseSpec& spec : cases_for(options_.backend)) {
      for (DType dtype : spec.dtypes) {
        std::vector<Arm> arms;
        const auto add_arm = [&](Arm arm) {
          if (std::regex_search(name_of(spec, dtype, arm), wanted) != negative) {
            arms.push_back(std::move(arm));
          }
        };
        for (const KernelEntry* kernel : me::kernels()) {
          if (kernel->op != spec.op || kernel->backend != options_.backend) continue;
          add_arm({.kernel = kernel});
          if (!options_.configs || kernel->configs == nullptr || device_ == nullptr) continue;
          const CaseProblem c = problem_of(spec, dtype, device_->info());
          if (!kernel->supports(c.problem).ok) continue;
          for (KernelConfig& config : kernel->configs(c.problem)) {
            add_arm({.kernel = kernel, .config = std::move(config.name)});
          }
        }
        if (!arms.empty()) {
          add(std::make_shared<Group>(device_, spec, dtype, std::move(arms), options_.caches));
        }
      }
    }
  }

  void add(const std::shared_ptr<Group>& group) {
    groups_.push_back(group);
    for (size_t i = 0; i < group->size(); ++i) {
      const auto run = [this, group, i](benchmark::State& state) { report(state, *group, i); };
      benchmark::RegisterBenchmark(group->name(i).c_str(), run)
          ->Iterations(1)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }

  // Ceilings are measured on a GPU only: on a CPU one kernel copies on one thread.
  void prepare() {
    const auto set = [](const std::string& name, const std::string& value) {
      benchmark::AddCustomContext(name, value);
    };
    if (options_.backend == Backend::kCuda && !groups_.empty()) {
      const auto copy = copy_ceiling(device_);
      if (copy.ok()) {
        ceilings_.copy = copy.value();
        set("copy_ceiling_gbps", fmt::format("{:.0f}", copy.value() / 1e9));
      }
      for (const auto& group : groups_) {
        const bool multiplies = group->op() == "linear" || group->op() == "attention";
        if (!multiplies || ceilings_.matrix.contains(group->dtype())) continue;
        const auto matrix = matrix_ceiling(device_, group->dtype());
        if (!matrix) continue;
        ceilings_.matrix[group->dtype()] = *matrix;
        set(fmt::format("matrix_ceiling_tflops_{}", name_of(group->dtype())),
            fmt::format("{:.1f}", *matrix / 1e12));
      }
    }
    for (const auto& [name, value] : provenance(device_->info())) {
      if (name != "date") set(name, value);  // Google Benchmark has its own
    }
    set("threads", std::to_string(options_.threads));
    if (const std::string warning = clock_warning(device_->info()); !warning.empty()) {
      set("clock_warning", warning);
      fmt::print(stderr, "{}\n", warning);
    }
  }

  void report(benchmark::State& state, Group& group, size_t i) {
    const CaseResult& result = group.result(i);
    const Arm& arm = result.arms[i];
    switch (arm.state) {
      case Arm::State::kTimed:
        break;
      case Arm::State::kRefused:
        state.SkipWithError(("refused: " + arm.note).c_str());
        return;
      case Arm::State::kWrong:
        status_ = kExitWrong;
        state.SkipWithError(("wrong: " + arm.note).c_str());
        return;
      case Arm::State::kFailed:
        if (status_ == 0 && !arm.kernel->baseline) status_ = kExitFailed;
        state.SkipWithError(("failed: " + arm.note).c_str());
        return;
    }
    const double seconds = arm.time_us.median * 1e-6;
    for (auto _ : state) state.SetIterationTime(seconds);
    state.SetLabel(arm.note);
    auto& counters = state.counters;
    counters["us"] = arm.time_us.median;
    counters["spread_pct"] = 100 * arm.time_us.spread;
    counters["min_us"] = arm.time_us.min;
    counters["samples"] = static_cast<double>(arm.time_us.count);
    counters["gbps"] = result.work.bytes / seconds * 1e-9;
    counters["tflops"] = result.work.flops / seconds * 1e-12;
    if (ceilings_.copy) {
      counters["pct_copy"] = 100 * result.work.bytes / seconds / *ceilings_.copy;
    }
    if (const auto it = ceilings_.matrix.find(group.dtype());
        it != ceilings_.matrix.end() && (group.op() == "linear" || group.op() == "attention")) {
      counters["pct_matrix"] = 100 * result.work.flops / seconds / it->second;
    }
    counters["max_rel_error"] = arm.max_rel_error;
    if (result.warm) counters["warm"] = 1;
    if (arm.chosen) counters["chosen"] = 1;
    if (arm.kernel->baseline) counters["baseline"] = 1;
  }

  Options options_;
  std::shared_ptr<Device> device_;
  std::vector<std::shared_ptr<Group>> groups_;
  Ceilings ceilings_;
  int status_ = 0;
};

int main(int argc, char** argv) {
  const auto options = take_options(&argc, argv);
  if (!options) return kExitUsage;
  DeviceInfo info{.backend = options->backend, .threads = options->threads};
  if (options->lists_cases) {
    list_cases(info);
    return 0;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return kExitUsage;
  if (options->backend == Backend::kCuda && !options->lists_tests) {
    const auto found = find_cuda_device(0);
    if (!found.ok()) {
      fmt::print(stderr, "{}\n", found.error().to_string());
      return kExitNoDevice;
    }
    info = found.value();
  }
  int status = 0;
  try {
    const auto device = options->lists_tests ? nullptr : Device::open(info);
    status = Program(*options, device).run();
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    status = kExitFailed;
  }
  benchmark::Shutdown();
  return status;
}

}  // namespace
}  // namespace me::bench

int main(int argc, char** argv) { return me::bench::main(argc, argv); }
