#include "engine/cli/common.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "engine/plan/bind.h"
#include "engine/runtime/tuner.h"
#include "ops/device/device.h"

namespace me::cli {
namespace {

constexpr int kMostThreads = 1024;

// Cores that this process may run on, which in a container are fewer than the machine has.
int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Error usage(std::string field, std::string message) {
  Error error = invalid(std::move(message));
  error.field = std::move(field);
  return error;
}

}  // namespace

CLI::Option* add_repeatable(CLI::App& command, const std::string& name,
                            std::vector<std::string>& values, const std::string& help) {
  return command.add_option(name, values, help)->expected(1)->take_all()->allow_extra_args(false);
}

void add_plan_options(CLI::App& command, PlanArgs& args) {
  command.add_option("model", args.model, "Model file: .txtpb (protobuf text) or .pb (binary)")
      ->required()
      ->type_name("MODEL");
  add_repeatable(command, "--dim", args.dims, "Give a symbol its number: --dim batch=8")
      ->type_name("SYMBOL=N");
  add_repeatable(command, "--kernel", args.kernels,
                 "Use this kernel for this node: --kernel scores=softmax_cpu_split")
      ->type_name("NODE=KERNEL");
  command
      .add_option("--tune", args.tune,
                  "Take kernels and their configurations from this file, which is made where it is "
                  "not there; what it lacks for this device is measured first, and added")
      ->type_name("FILE");
  command
      .add_option("--device", args.device,
                  "Where to run: auto takes the best there is and says which")
      ->type_name("auto|cpu|cuda|cuda:N")
      ->capture_default_str();
  command.add_option("--threads", args.threads, "CPU threads; 0 takes every core it may use")
      ->type_name("N")
      ->check(CLI::Range(0, kMostThreads))
      ->capture_default_str();
}

Result<std::shared_ptr<const Plan>> make_plan(const PlanArgs& args,
                                              const std::shared_ptr<const Graph>& graph,
                                              const PlanOptions& options) {
  if (args.tune.empty()) return Plan::make(graph, options);
  const auto cache = std::make_shared<TuningCache>(tuning_machine(options.device));
  ME_RETURN_IF_ERROR(cache->load(args.tune));
  ME_ASSIGN_OR_RETURN(const TunedPlan tuned, make_tuned_plan(graph, options, cache));
  if (tuned.measured > 0) {
    ME_RETURN_IF_ERROR(cache->save(args.tune));
    notify(fmt::format("measured {} {} and wrote them to {}", tuned.measured,
                       tuned.measured == 1 ? "problem" : "problems", args.tune));
  }
  return tuned.plan;
}

Result<NameValue> split_pair(const std::string& text, const std::string& option) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    return usage(option, fmt::format("found {}, expected NAME=VALUE", in_quotes(text)));
  }
  return NameValue{text.substr(0, equals), text.substr(equals + 1)};
}

Result<DeviceInfo> pick_device(const std::string& device, int threads, std::string& notice) {
  const auto bad = [&] {
    return usage("--device",
                 fmt::format("found {}, expected auto, cpu, cuda or cuda:N", in_quotes(device)));
  };
  int index = 0;
  const bool numbered = device.starts_with("cuda:");
  if (numbered) {
    const char* end = device.data() + device.size();
    const auto [stop, error] = std::from_chars(device.data() + 5, end, index);
    if (error != std::errc() || stop != end || index < 0) return bad();
  }
  if (!numbered && device != "auto" && device != "cpu" && device != "cuda") return bad();
  DeviceInfo cpu;
  cpu.threads = threads > 0 ? threads : available_cores();
  if (device == "cpu") return cpu;
  auto cuda = find_cuda_device(index);
  if (device != "auto") {
    if (!cuda.ok()) cuda.error().message += "; --device cpu runs every model without a GPU";
    return cuda;
  }
  if (cuda.ok()) {
    notice = "device: took " + to_string(cuda.value());
    return cuda;
  }
  notice = "device: took cpu; " + cuda.error().message;
  return cpu;
}

Result<PlanOptions> plan_options(const PlanArgs& args, const Graph& graph,
                                 const std::map<std::string, Dims>& input_shapes,
                                 std::string& notice) {
  PlanOptions options;
  Symbols given;
  for (const std::string& text : args.dims) {
    ME_ASSIGN_OR_RETURN(const NameValue pair, split_pair(text, "--dim"));
    int64_t size = 0;
    const char* end = pair.value.data() + pair.value.size();
    const auto [stop, error] = std::from_chars(pair.value.data(), end, size);
    if (error != std::errc() || stop != end || size < 0) {
      return usage("--dim", fmt::format("found {} = {}, expected a whole number >= 0 below 2^63",
                                        in_quotes(pair.name), in_quotes(pair.value)));
    }
    const auto [it, fresh] = given.emplace(pair.name, size);
    if (!fresh && it->second != size) {
      return usage("--dim", fmt::format("found {} = {} and = {}, expected one value",
                                        in_quotes(pair.name), it->second, size));
    }
  }
  for (const std::string& text : args.kernels) {
    ME_ASSIGN_OR_RETURN(const NameValue pair, split_pair(text, "--kernel"));
    options.kernels[pair.name] = pair.value;
  }
  ME_ASSIGN_OR_RETURN(options.symbols, bind_symbols(graph, given, input_shapes));
  ME_ASSIGN_OR_RETURN(options.device, pick_device(args.device, args.threads, notice));
  return options;
}

int fail(const Error& error) {
  fmt::print(stderr, "engine: {}\n", error.to_string());
  return static_cast<int>(error.kind);
}

void notify(const std::string& text) { fmt::print(stderr, "note: {}\n", text); }

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

Json to_json(const Dims& dims) { return Json(std::vector<int64_t>(dims.begin(), dims.end())); }

}  // namespace me::cli
