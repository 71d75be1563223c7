// engine encode and engine decode: text to binary and back.
#include <fmt/format.h>

#include <cstdio>

#include "engine/cli/common.h"
#include "engine/model/loader.h"

namespace me::cli {
namespace {

struct ConvertArgs {
  std::string from;
  std::string to;
};

int convert(const ConvertArgs& args, ModelFormat want) {
  const auto format = format_of(args.to);
  if (!format.ok()) return fail(format.error());
  if (format.value() != want) {
    Error error = invalid(fmt::format("expected a name ending in {}",
                                      want == ModelFormat::kBinary ? ".pb" : ".txtpb"));
    error.file = args.to;
    return fail(error);
  }
  const Status status = convert_model(args.from, args.to);
  if (!status.ok()) return fail(status.error());
  fmt::print("wrote {}\n", args.to);
  return 0;
}

void add(CLI::App& app, int& status, const std::string& name, const std::string& what,
         ModelFormat want) {
  auto args = std::make_shared<ConvertArgs>();
  CLI::App* command = app.add_subcommand(name, what);
  command->footer(
      "The model is validated first. Weights in files of their own stay where they are, so the\n"
      "two models must lie in one folder when there are any. OUT is written whole or not at all.");
  command->add_option("model", args->from, "Model file: .txtpb or .pb")
      ->required()
      ->type_name("MODEL");
  command->add_option("out", args->to, "File to write")->required()->type_name("OUT");
  command->callback([args, want, &status] { status = convert(*args, want); });
}

}  // namespace

void add_convert(CLI::App& app, int& status) {
  add(app, status, "encode", "Write a model as binary (.pb)", ModelFormat::kBinary);
  add(app, status, "decode", "Write a model as text (.txtpb)", ModelFormat::kText);
}

}  // namespace me::cli
