// engine bench: what a run takes from end to end, and what its parts take.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>

#include "engine/cli/common.h"
#include "engine/cli/tensors.h"
#include "engine/model/loader.h"
#include "engine/runtime/provenance.h"
#include "engine/runtime/session.h"
#include "engine/runtime/statistics.h"

namespace me::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBlock = 16;        // runs of one arm before the other's turn
constexpr double kStable = 0.02;  // two blocks whose medians differ by less are stable
constexpr double kMostWarmUpSeconds = 2;
constexpr double kDoubtfulSpread = 0.1;  // of the middle half over the median
constexpr int64_t kMostRuns = 10'000'000;

struct BenchArgs {
  PlanArgs plan;
  std::vector<std::string> inputs;
  uint64_t seed = 0;
  int64_t runs = 0;  // 0: as many as fit into `seconds`
  double seconds = 2;
  bool json = false;
};

template <class Body>
double time_us(const Body& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// One way to run the model, with its samples in microseconds.
struct Arm {
  std::string name;
  std::string meaning;
  std::function<double()> sample;
  std::vector<double> samples = {};
};

struct Startup {
  std::vector<std::pair<std::string, double>> parts_us;
  double total_us() const {
    double total = 0;
    for (const auto& part : parts_us) total += part.second;
    return total;
  }
};

struct Report {
  std::vector<std::pair<const Arm*, Statistics>> arms;
  Startup startup;
  double capture_us = 0;
  double warm_up_seconds = 0;
  bool stable = false;
  double runs_per_second = 0;
  std::vector<std::string> doubts;
};

std::vector<Arm> make_arms(Session& session) {
  const auto host = [](auto body) { return [body] { return time_us(body); }; };
  std::vector<Arm> arms;
  if (session.device().host_memory()) {
    arms.push_back({"run", "host time of one run", host([&session] { session.run(); })});
    return arms;
  }
  arms.push_back({"graph_with_copies",
                  "host time: inputs to the device, captured graph, outputs back",
                  host([&session] { session.run(); })});
  arms.push_back(
      {"graph", "host time: captured graph, inputs and outputs on the device", host([&session] {
         session.launch();
         session.wait();
       })});
  arms.push_back({"stream", "host time: the same kernels launched one by one", host([&session] {
                    session.launch_eager();
                    session.wait();
                  })});
  arms.push_back({"graph_gpu", "GPU time of the captured graph", [&session] {
                    return session.device().time_us([&session] { session.launch(); });
                  }});
  arms.push_back({"stream_gpu", "GPU time of the launches", [&session] {
                    return session.device().time_us([&session] { session.launch_eager(); });
                  }});
  return arms;
}

// Until two blocks of the first arm agree.
void warm_up(const Arm& arm, Report& report) {
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto block = [&] {
    std::vector<double> samples;
    for (int i = 0; i < kBlock; ++i) samples.push_back(arm.sample());
    return median(samples);
  };
  double before = block();
  while (!report.stable && seconds() < kMostWarmUpSeconds) {
    const double now = block();
    report.stable = std::abs(now - before) <= kStable * before;
    before = now;
  }
  report.warm_up_seconds = seconds();
}

// The arms take turns, a block each, so that what drifts drifts for all.
void measure(std::vector<Arm>& arms, int64_t runs, double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const auto enough = [&] {
    const auto taken = static_cast<int64_t>(arms[0].samples.size());
    return runs > 0 ? taken >= runs : taken >= kMostRuns || (taken > 0 && Clock::now() >= end);
  };
  while (!enough()) {
    for (Arm& arm : arms) {
      for (int i = 0; i < kBlock; ++i) arm.samples.push_back(arm.sample());
    }
  }
  for (Arm& arm : arms) {
    if (runs > 0) arm.samples.resize(static_cast<size_t>(runs));
  }
}

// Runs in flight one after the other, waiting only at the end.
double throughput(Session& session, double run_us) {
  const int runs = static_cast<int>(std::clamp(2e5 / std::max(0.1, run_us), 10.0, 1e5));
  const double us = time_us([&] {
    for (int i = 0; i < runs; ++i) session.launch();
    session.wait();
  });
  return runs / us * 1e6;
}

const Statistics* find(const Report& report, std::string_view name) {
  for (const auto& [arm, statistics] : report.arms) {
    if (arm->name == name) return &statistics;
  }
  return nullptr;
}

// Runs after which the capture has paid for itself; nothing where it never does.
std::optional<double> payback_runs(const Report& report) {
  const Statistics* graph = find(report, "graph");
  const Statistics* stream = find(report, "stream");
  if (graph == nullptr || stream == nullptr || stream->median <= graph->median) return std::nullopt;
  return std::ceil(report.capture_us / (stream->median - graph->median));
}

void print_report(const Session& session, const Report& report) {
  const Plan& plan = session.plan();
  fmt::print("model    {} on {}\n", plan.graph().file, to_string(plan.device()));
  fmt::print("warm-up  {:.2f} s, {}\n", report.warm_up_seconds,
             report.stable ? "stable" : "not stable");
  fmt::print("\n{:<20}", "microseconds");
  for (const char* column :
       {"runs", "min", "median", "mean", "p90", "p95", "p99", "p99.9", "max"}) {
    fmt::print(" {:>9}", column);
  }
  fmt::print(" {:>8}\n", "spread");
  for (const auto& [arm, s] : report.arms) {
    fmt::print("{:<20} {:>9} {:>9.2f} {:>9.2f} {:>9.2f}", arm->name, s.count, s.min, s.median,
               s.mean);
    for (const auto& tail : {s.p90, s.p95, s.p99, s.p99_9}) {
      fmt::print(" {:>9}", tail ? fmt::format("{:.2f}", *tail) : "-");
    }
    fmt::print(" {:>9.2f} {:>6.1f} %\n", s.max, 100 * s.spread);
  }
  for (const auto& entry : report.arms) {
    fmt::print("  {:<18} {}\n", entry.first->name, entry.first->meaning);
  }
  fmt::print("\nthroughput  {:.0f} runs/s, one after the other without waiting between\n",
             report.runs_per_second);
  fmt::print("first run   {:.1f} ms:", report.startup.total_us() / 1e3);
  for (const auto& [part, us] : report.startup.parts_us) fmt::print(" {} {:.1f}", part, us / 1e3);
  fmt::print(" ms\n");
  if (find(report, "stream") != nullptr) {
    const auto runs = payback_runs(report);
    fmt::print("capture     {:.0f} us with instantiation and upload, paid back {}\n",
               report.capture_us, runs ? fmt::format("after {:.0f} runs", *runs) : "never");
  }
  for (const std::string& doubt : report.doubts) notify(doubt);
}

Json to_json(const Arm& arm, const Statistics& s) {
  Json out = {{"meaning", arm.meaning}, {"runs", s.count}, {"min", s.min},
              {"median", s.median},     {"mean", s.mean},  {"max", s.max},
              {"spread", s.spread}};
  const auto tail = [&](const char* name, const std::optional<double>& value) {
    out[name] = value ? Json(*value) : Json();
  };
  tail("p90", s.p90);
  tail("p95", s.p95);
  tail("p99", s.p99);
  tail("p99_9", s.p99_9);
  return out;
}

void print_report_json(const Session& session, const Report& report) {
  const Plan& plan = session.plan();
  Json kernels = Json::object();
  for (const Step& step : plan.steps()) {
    if (step.kernel == nullptr) continue;
    kernels[plan.graph().nodes[static_cast<size_t>(step.node)].name] = step.kernel->name;
  }
  Json out = {{"model", plan.graph().file},
              {"symbols", plan.symbols()},
              {"kernels", kernels},
              {"provenance", provenance(plan.device())},
              {"warm_up_seconds", report.warm_up_seconds},
              {"stable", report.stable},
              {"latency_us", Json::object()},
              {"runs_per_second", report.runs_per_second},
              {"first_run_us", Json::object()},
              {"doubts", report.doubts}};
  for (const auto& [arm, statistics] : report.arms) {
    out["latency_us"][arm->name] = to_json(*arm, statistics);
  }
  for (const auto& [part, us] : report.startup.parts_us) out["first_run_us"][part] = us;
  if (find(report, "stream") != nullptr) {
    const auto runs = payback_runs(report);
    out["capture_us"] = report.capture_us;
    out["capture_payback_runs"] = runs ? Json(*runs) : Json();
  }
  print_json(out);
}

Status run_bench(const BenchArgs& args) {
  Report report;
  auto& parts = report.startup.parts_us;
  auto start = Clock::now();
  const auto lap = [&](const std::string& part) {
    const auto now = Clock::now();
    parts.emplace_back(part, std::chrono::duration<double, std::micro>(now - start).count());
    start = now;
  };
  ME_ASSIGN_OR_RETURN(Graph loaded, load_model(args.plan.model));
  const auto graph = std::make_shared<const Graph>(std::move(loaded));
  lap("load");
  ME_ASSIGN_OR_RETURN(const auto arrays, read_inputs(*graph, args.inputs));
  std::string notice;
  start = Clock::now();
  ME_ASSIGN_OR_RETURN(const PlanOptions options,
                      plan_options(args.plan, *graph, shapes_of(arrays), notice));
  lap("context");  // the device's, where it has one: looking for it makes it
  ME_ASSIGN_OR_RETURN(const auto plan, make_plan(args.plan, graph, options));
  lap("plan");
  ME_ASSIGN_OR_RETURN(const auto session, Session::create(plan));
  if (!notice.empty()) notify(notice);
  const StartupCost& cost = session->startup();
  report.capture_us = cost.capture_us;
  parts.emplace_back("memory", cost.device_us + cost.memory_us);
  parts.emplace_back("modules", cost.modules_us);
  parts.emplace_back("tuning", cost.tuning_us);
  parts.emplace_back("warm_up", cost.warm_up_us);
  parts.emplace_back("capture", cost.capture_us);
  ME_RETURN_IF_ERROR(fill_inputs(*graph, session->inputs(), arrays, args.seed));
  parts.emplace_back("run", time_us([&] { session->run(); }));

  std::vector<Arm> arms = make_arms(*session);
  warm_up(arms[0], report);
  const std::string clocks_before = clock_warning(plan->device());
  measure(arms, args.runs, args.seconds);
  const std::string clocks_after = clock_warning(plan->device());
  for (const Arm& arm : arms) report.arms.emplace_back(&arm, me::summarize(arm.samples));
  report.runs_per_second = throughput(*session, report.arms[0].second.median);

  if (!report.stable) {
    report.doubts.push_back(fmt::format(
        "after {:.0f} s of warm-up the medians of {} runs still differed by more than {:.0f} %",
        kMostWarmUpSeconds, kBlock, 100 * kStable));
  }
  for (const std::string& clocks : {clocks_before, clocks_after}) {
    if (!clocks.empty() && (report.doubts.empty() || report.doubts.back() != clocks)) {
      report.doubts.push_back(clocks);
    }
  }
  for (const auto& [arm, statistics] : report.arms) {
    if (statistics.spread > kDoubtfulSpread) {
      report.doubts.push_back(
          fmt::format("{}: the middle half of the runs spreads over {:.0f} % of "
                      "the median",
                      arm->name, 100 * statistics.spread));
    }
  }
  (args.json ? print_report_json : print_report)(*session, report);
  return Ok{};
}

}  // namespace

void add_bench(CLI::App& app, int& status) {
  auto args = std::make_shared<BenchArgs>();
  CLI::App* command = app.add_subcommand(
      "bench", "End-to-end latency: captured graph and plain launches, host and GPU time");
  command->footer(
      "Examples:\n"
      "  engine bench models/chain.pb\n"
      "  engine bench models/digits.pb --dim batch=1 --runs 100000 --json\n"
      "Warms up until two blocks of runs agree, then measures; the ways to run take turns. A "
      "percentile\n"
      "is shown where at least 10 runs lie beyond it. The spread is the width of the middle half "
      "of the\n"
      "runs over their median. A notice says when clocks or spread make the figures doubtful.");
  add_plan_options(*command, args->plan);
  add_input_options(*command, args->inputs, args->seed);
  command->add_option("--runs", args->runs, "Runs to measure; 0: as many as fit into --seconds")
      ->check(CLI::Range(int64_t{0}, kMostRuns))
      ->capture_default_str();
  command->add_option("--seconds", args->seconds, "How long to measure")
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
  command->add_flag("--json", args->json, "Print the result as JSON, with provenance");
  command->callback([args, &status] {
    const Status result = run_bench(*args);
    status = result.ok() ? 0 : fail(result.error());
  });
}

}  // namespace me::cli
