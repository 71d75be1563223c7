// engine run: inputs in, answers and latency out.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "engine/cli/common.h"
#include "engine/cli/tensors.h"
#include "engine/model/loader.h"
#include "engine/runtime/latency.h"
#include "engine/runtime/session.h"

namespace me::cli {
namespace {

constexpr int64_t kRowsShown = 8;
constexpr int64_t kElementsShown = 10;
constexpr double kMostRepeatSeconds = 1.0;

struct RunArgs {
  PlanArgs plan;
  std::vector<std::string> inputs;   // NAME=FILE or FILE
  std::vector<std::string> outputs;  // NAME=FILE
  std::vector<std::string> labels;   // NAME=FILE
  uint64_t seed = 0;
  int repeat = 10;
  bool json = false;
};

size_t at(int index) { return static_cast<size_t>(index); }

// The class of each row of an output, as a file has them.
struct Labels {
  std::string file;
  Array array;
};

// How many rows have their largest element where the labels say.
struct Score {
  int64_t correct = 0;
  int64_t rows = 0;
  double percent() const {
    return rows == 0 ? 0 : 100.0 * static_cast<double>(correct) / static_cast<double>(rows);
  }
};

struct OutputReport {
  std::string name;
  TensorView view;
  std::string written_to;
  std::optional<Labels> labels;
  Score score;
};

// Position of the graph's output called `name`.
Result<size_t> find_output(const Graph& graph, const std::string& name, const std::string& option) {
  std::string known;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const std::string& output = graph.values[at(graph.outputs[i])].name;
    if (output == name) return i;
    known += (known.empty() ? "" : ", ") + in_quotes(output);
  }
  Error error =
      invalid(fmt::format("found {}, expected an output of the model: {}", in_quotes(name), known));
  error.file = graph.file;
  error.field = option;
  return error;
}

// Integers, one per row of the output.
Result<Labels> read_labels(const std::string& file, const TensorDesc& output) {
  ME_ASSIGN_OR_RETURN(Array array, read_npy(file));
  const int64_t rows = row_count(output);
  const bool whole = array.type == ArrayType::kI64 || array.type == ArrayType::kI32 ||
                     array.type == ArrayType::kI8 || array.type == ArrayType::kU8;
  if (!whole || count(array.shape) != rows) {
    Error error = invalid(fmt::format("found {} elements of type {}, expected {} integers",
                                      count(array.shape), name_of(array.type), rows));
    error.file = file;
    error.field = "--labels";
    return error;
  }
  return Labels{file, std::move(array)};
}

Score score_of(const TensorView& output, const Labels& labels) {
  Score score{0, row_count(output)};
  for (int64_t row = 0; row < score.rows; ++row) {
    const int64_t best = argmax_of_row(output, row);
    if (best >= 0 && static_cast<double>(best) == labels.array.get(row)) ++score.correct;
  }
  return score;
}

void print_output(const OutputReport& report) {
  const TensorView& y = report.view;
  const TensorSummary s = summarize(y);
  fmt::print("output   {} {}: min {:.6g}, max {:.6g}, mean {:.6g}", in_quotes(report.name),
             to_string(y.type()), s.min, s.max, s.mean);
  if (s.nan > 0) fmt::print(", {} NaN", s.nan);
  if (s.infinite > 0) fmt::print(", {} infinite", s.infinite);
  fmt::print("\n");
  const int64_t rows = s.count == 0 ? 0 : row_count(y);
  const int64_t length = y.shape.back();
  for (int64_t row = 0; row < std::min(rows, kRowsShown); ++row) {
    const int64_t best = argmax_of_row(y, row);
    fmt::print("  row {}:", row);
    for (int64_t i = 0; i < std::min(length, kElementsShown); ++i) {
      fmt::print(" {:.4g}", load_f32(y.data, offset_of(y, row * length + i), y.dtype));
    }
    if (length > kElementsShown) fmt::print(" ...");
    if (best >= 0 && length > 1) fmt::print("  largest at {}", best);
    if (report.labels) fmt::print(", label {}", report.labels->array.get(row));
    fmt::print("\n");
  }
  if (rows > kRowsShown) fmt::print("  ... {} more rows\n", rows - kRowsShown);
  if (report.labels) {
    fmt::print("  {} of {} rows ({:.2f} %) have their largest element at the label in {}\n",
               report.score.correct, report.score.rows, report.score.percent(),
               report.labels->file);
  }
  if (!report.written_to.empty()) fmt::print("  written to {}\n", report.written_to);
}

Json output_json(const OutputReport& report) {
  const TensorView& y = report.view;
  const TensorSummary s = summarize(y);
  Json out = {{"name", report.name},
              {"dtype", name_of(y.dtype)},
              {"shape", to_json(y.shape)},
              {"min", s.min},
              {"max", s.max},
              {"mean", s.mean},
              {"nan", s.nan},
              {"infinite", s.infinite}};
  if (s.count > 0) {
    Json argmax = Json::array();
    for (int64_t row = 0; row < row_count(y); ++row) argmax.push_back(argmax_of_row(y, row));
    out["argmax"] = argmax;
  }
  if (report.labels) {
    out["labels"] = {{"file", report.labels->file},
                     {"correct", report.score.correct},
                     {"rows", report.score.rows},
                     {"percent", report.score.percent()}};
  }
  if (!report.written_to.empty()) out["written_to"] = report.written_to;
  return out;
}

void print_report_json(const Session& session, const std::vector<std::string>& sources,
                       const std::vector<OutputReport>& reports, const Latency& latency) {
  const Plan& plan = session.plan();
  Json out = {{"model", plan.graph().file},
              {"device", name_of(plan.device().backend)},
              {"threads", plan.device().threads},
              {"inputs", Json::array()},
              {"outputs", Json::array()}};
  for (size_t i = 0; i < sources.size(); ++i) {
    const TensorView x = session.input(i);
    out["inputs"].push_back({{"name", plan.graph().values[at(plan.graph().inputs[i])].name},
                             {"dtype", name_of(x.dtype)},
                             {"shape", to_json(x.shape)},
                             {"source", sources[i]}});
  }
  for (const OutputReport& report : reports) out["outputs"].push_back(output_json(report));
  out["latency_us"] = {{"first", latency.first_us},
                       {"runs", latency.runs},
                       {"min", latency.min_us},
                       {"median", latency.median_us},
                       {"max", latency.max_us}};
  print_json(out);
}

void print_report(const Session& session, const std::vector<std::string>& sources,
                  const std::vector<OutputReport>& reports, const Latency& latency) {
  const Plan& plan = session.plan();
  fmt::print("model    {} on {}\n", plan.graph().file, to_string(plan.device()));
  for (size_t i = 0; i < sources.size(); ++i) {
    fmt::print("input    {} {} from {}\n",
               in_quotes(plan.graph().values[at(plan.graph().inputs[i])].name),
               to_string(session.input(i).type()), sources[i]);
  }
  for (const OutputReport& report : reports) print_output(report);
  if (latency.runs > 0) {
    fmt::print(
        "latency  {:.1f} us, the median of {} runs ({:.1f} to {:.1f}); the first took {:.1f}\n",
        latency.median_us, latency.runs, latency.min_us, latency.max_us, latency.first_us);
  } else {
    fmt::print("latency  {:.1f} us, the first and only run\n", latency.first_us);
  }
}

Status run(const RunArgs& args) {
  ME_ASSIGN_OR_RETURN(Graph loaded, load_model(args.plan.model));
  const auto graph = std::make_shared<const Graph>(std::move(loaded));
  ME_ASSIGN_OR_RETURN(const auto arrays, read_inputs(*graph, args.inputs));
  std::string device_notice;
  ME_ASSIGN_OR_RETURN(const PlanOptions options,
                      plan_options(args.plan, *graph, shapes_of(arrays), device_notice));
  ME_ASSIGN_OR_RETURN(const auto plan, make_plan(args.plan, graph, options));

  // Whatever can be wrong with the command line is found before anything runs.
  std::vector<std::pair<size_t, std::string>> writes;
  for (const std::string& text : args.outputs) {
    ME_ASSIGN_OR_RETURN(const NameValue pair, split_pair(text, "--output"));
    ME_ASSIGN_OR_RETURN(const size_t position, find_output(*graph, pair.name, "--output"));
    ME_RETURN_IF_ERROR(check_output_path(pair.value));
    writes.emplace_back(position, pair.value);
  }
  std::vector<std::optional<Labels>> labels(graph->outputs.size());
  for (const std::string& text : args.labels) {
    ME_ASSIGN_OR_RETURN(const NameValue pair, split_pair(text, "--labels"));
    ME_ASSIGN_OR_RETURN(const size_t position, find_output(*graph, pair.name, "--labels"));
    ME_ASSIGN_OR_RETURN(labels[position],
                        read_labels(pair.value, plan->values()[at(graph->outputs[position])].desc));
  }
  ME_ASSIGN_OR_RETURN(const auto session, Session::create(plan));
  if (!device_notice.empty()) notify(device_notice);
  ME_ASSIGN_OR_RETURN(const auto sources,
                      fill_inputs(*graph, session->inputs(), arrays, args.seed));

  const Latency latency = measure_latency([&] { session->run(); }, args.repeat, kMostRepeatSeconds);

  std::vector<OutputReport> reports;
  for (size_t i = 0; i < graph->outputs.size(); ++i) {
    OutputReport report{graph->values[at(graph->outputs[i])].name,
                        session->output(i),
                        {},
                        std::move(labels[i]),
                        {}};
    if (report.labels) report.score = score_of(report.view, *report.labels);
    reports.push_back(std::move(report));
  }
  for (const auto& [position, file] : writes) {
    ME_RETURN_IF_ERROR(write_tensor(file, reports[position].name, reports[position].view));
    reports[position].written_to = file;
  }
  (args.json ? print_report_json : print_report)(*session, sources, reports, latency);
  return Ok{};
}

}  // namespace

void add_run(CLI::App& app, int& status) {
  auto args = std::make_shared<RunArgs>();
  CLI::App* command = app.add_subcommand("run", "Run a model: answers and latency");
  command->footer(
      "Examples:\n"
      "  engine run models/digits.pb --input image=models/digits/test_images.npy \\\n"
      "      --labels probability=models/digits/test_labels.npy\n"
      "  engine run models/softmax.txtpb --output y=y.npy\n"
      "Inputs that are not given are random, with a notice. Symbols get their numbers from the\n"
      "inputs' shapes or from --dim.");
  add_plan_options(*command, args->plan);
  add_input_options(*command, args->inputs, args->seed);
  add_repeatable(*command, "--output", args->outputs,
                 "Write an output: NAME=FILE.npy (bf16 as float32, which is exact) or\n"
                 "NAME=FILE.safetensors")
      ->type_name("NAME=FILE");
  add_repeatable(*command, "--labels", args->labels,
                 "Compare the place of each row's largest element with the integers in FILE.npy")
      ->type_name("NAME=FILE");
  command
      ->add_option("--repeat", args->repeat,
                   "Runs after the first to time (stops early after one second)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--json", args->json, "Print the result as JSON");
  command->callback([args, &status] {
    const Status result = run(*args);
    status = result.ok() ? 0 : fail(result.error());
  });
}

}  // namespace me::cli
