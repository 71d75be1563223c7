// engine check: is this a model?
#include <fmt/format.h>

#include <cstdio>

#include "engine/cli/common.h"
#include "engine/model/loader.h"
#include "engine/plan/bind.h"

namespace me::cli {
namespace {

struct CheckArgs {
  std::string model;
  bool json = false;
};

int check(const CheckArgs& args) {
  auto graph = load_model(args.model);
  if (!graph.ok()) {
    if (args.json) {
      const Error& e = graph.error();
      const Json report = {{"valid", false},   {"file", e.file},       {"node", e.node},
                           {"field", e.field}, {"message", e.message}, {"text", e.to_string()}};
      print_json(report);
      return static_cast<int>(e.kind);
    }
    return fail(graph.error());
  }
  const Graph& g = graph.value();
  if (args.json) {
    const Json report = {{"valid", true},
                         {"file", g.file},
                         {"nodes", g.nodes.size()},
                         {"values", g.values.size()},
                         {"symbols", g.symbols}};
    print_json(report);
    return 0;
  }
  std::string symbols;
  for (const std::string& s : g.symbols) symbols += (symbols.empty() ? "; symbols: " : ", ") + s;
  fmt::print("{}: a valid model with {} node{}{}\n", g.file, g.nodes.size(),
             g.nodes.size() == 1 ? "" : "s", symbols);
  return 0;
}

}  // namespace

void add_check(CLI::App& app, int& status) {
  auto args = std::make_shared<CheckArgs>();
  CLI::App* command = app.add_subcommand("check", "Validate a model and its weights");
  command->footer(
      "Prints one line and exits with 0 for a valid model; for any other, one line that names the\n"
      "file, the node, the field, what was found and what was expected, and exits with 2.");
  command->add_option("model", args->model, "Model file: .txtpb (protobuf text) or .pb (binary)")
      ->required()
      ->type_name("MODEL");
  command->add_flag("--json", args->json, "Print the verdict as JSON");
  command->callback([args, &status] { status = check(*args); });
}

}  // namespace me::cli
