// The `engine` program.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "engine/cli/common.h"

namespace {

int run_program(int argc, char** argv) {
  CLI::App app{
      "Runs neural-network graphs with hand-written kernels.\n\n"
      "A model is a protobuf file, as text (.txtpb) or binary (.pb). Try:\n"
      "  engine run models/digits.pb --input image=models/digits/test_images.npy\n"
      "  engine inspect models/chain.txtpb\n"
      "and `engine COMMAND --help` for each command's options.",
      "engine"};
  app.set_version_flag("--version", ME_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 success; 1 an expectation that fails; 2 usage, a bad model or bad input;\n"
      "3 a device that cannot run it; 4 a failure while running.");

  int status = 0;
  me::cli::add_run(app, status);
  me::cli::add_compare(app, status);
  me::cli::add_bench(app, status);
  me::cli::add_check(app, status);
  me::cli::add_inspect(app, status);
  me::cli::add_convert(app, status);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "engine: cannot write to the standard output\n");
    return 4;
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_program(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine: %s\n", error.what());
    return 4;
  }
}
