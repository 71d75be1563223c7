// What the sub-commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace me::cli {

using Json = nlohmann::ordered_json;

// A model and how to plan it, as given on the command line.
struct PlanArgs {
  std::string model;
  std::vector<std::string> dims;     // SYMBOL=N
  std::vector<std::string> kernels;  // NODE=KERNEL
  std::string device = "auto";
  int threads = 0;   // 0: one per core that this process may use
  std::string tune;  // file of a tuning cache; empty: kernels choose by themselves
};

// An option that takes one value each time it is given, and may be given again. (Left to itself
// CLI11 would take the words after it too, the model's name among them.)
CLI::Option* add_repeatable(CLI::App& command, const std::string& name,
                            std::vector<std::string>& values, const std::string& help);

// Adds the options of PlanArgs to a sub-command.
void add_plan_options(CLI::App& command, PlanArgs& args);

struct NameValue {
  std::string name;
  std::string value;
};

// Splits "NAME=VALUE" at the first '='. Both must be non-empty; `option` is for the message.
Result<NameValue> split_pair(const std::string& text, const std::string& option);

// The device that --device and --threads ask for. `notice` says what "auto" took.
Result<DeviceInfo> pick_device(const std::string& device, int threads, std::string& notice);

// Plan options from the arguments; symbols also from the shapes of inputs.
Result<PlanOptions> plan_options(const PlanArgs& args, const Graph& graph,
                                 const std::map<std::string, Dims>& input_shapes,
                                 std::string& notice);

// The plan, tuned where the arguments ask for it: the file is read first, and written where
// something was measured.
Result<std::shared_ptr<const Plan>> make_plan(const PlanArgs& args,
                                              const std::shared_ptr<const Graph>& graph,
                                              const PlanOptions& options);

// Prints the error as one line to the standard error and returns its exit status.
int fail(const Error& error);

// Prints `text` to the standard error as a notice.
void notify(const std::string& text);

Json to_json(const Dims& dims);

// Prints to the standard output, indented; invalid UTF-8 is replaced.
void print_json(const Json& json);

// One function per sub-command: adds it to `app`. The parsed command runs from its callback and
// leaves its exit status in `status`.
void add_run(CLI::App& app, int& status);
void add_check(CLI::App& app, int& status);
void add_inspect(CLI::App& app, int& status);
void add_compare(CLI::App& app, int& status);
void add_bench(CLI::App& app, int& status);
void add_convert(CLI::App& app, int& status);

}  // namespace me::cli
