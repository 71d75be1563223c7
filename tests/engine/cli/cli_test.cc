// The program as a user meets it: arguments in; output, files and exit status out.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/io/npy.h"
#include "engine/io/safetensors.h"
#include "ops/device/device.h"
#include "tests/engine/engine_test.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

using Json = nlohmann::json;
using CliRunTest = KernelsTest;

const std::string kModels = std::string(ME_SOURCE_DIR) + "/models/";
const std::string kDigitsInput = " --input image=" + kModels + "digits/test_images.npy";
const std::string kDigitsLabels = " --labels probability=" + kModels + "digits/test_labels.npy";

struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Runs the program with `arguments`, as a shell would split them; on the test backend where they
// plan a model and name no device.
Outcome engine(std::string arguments) {
  const std::string command_name = arguments.substr(0, arguments.find(' '));
  if ((command_name == "run" || command_name == "inspect" || command_name == "compare" ||
       command_name == "bench") &&
      has(arguments, ".") && !has(arguments, "--device")) {
    arguments += " --device " + std::string(name_of(test_backend()));
  }
  const TempFolder folder;
  const std::string err_file = folder.path("err");
  const std::string command = std::string(ME_ENGINE) + " " + arguments + " 2>" + err_file;
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  char buffer[4096];
  size_t n = 0;
  while ((n = fread(buffer, 1, sizeof buffer, pipe)) > 0) outcome.out.append(buffer, n);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.err = read_bytes(err_file);
  return outcome;
}

// One line, from the program, that says `part`, with this exit status and nothing on stdout.
void expect_refusal(const std::string& arguments, int status, const std::string& part) {
  SCOPED_TRACE(arguments);
  const Outcome outcome = engine(arguments);
  EXPECT_EQ(outcome.status, status);
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(has(outcome.err, part)) << outcome.err;
  EXPECT_EQ(outcome.err.rfind("engine: ", 0), 0u) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
}

TEST_F(CliRunTest, DigitsAreRecognised) {
  const Outcome outcome =
      engine("run " + kModels + "digits.pb" + kDigitsInput + kDigitsLabels + " --json");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json out = Json::parse(outcome.out);
  const Json& labels = out["outputs"][0]["labels"];
  EXPECT_EQ(out["outputs"][0]["name"], "probability");
  EXPECT_EQ(out["outputs"][0]["shape"], Json({400, 10}));
  EXPECT_EQ(labels["rows"], 400);
  EXPECT_GE(labels["percent"], 97.0);
  EXPECT_GT(out["latency_us"]["median"], 0.0);

  const Outcome people = engine("run " + kModels + "digits.pb" + kDigitsInput + kDigitsLabels);
  ASSERT_EQ(people.status, 0) << people.err;
  EXPECT_TRUE(has(people.out, "of 400 rows")) << people.out;
  EXPECT_TRUE(has(people.out, "latency")) << people.out;
  EXPECT_FALSE(has(people.err, "random")) << people.err;
}

// Every backend gives the same answers: those of float64, within a millionth, and the same digit.
TEST_F(CliRunTest, DigitsHaveTheAnswersOfFloat64) {
  const TempFolder folder;
  const std::string file = folder.path("probability.npy");
  const Outcome outcome =
      engine("run " + kModels + "digits.pb" + kDigitsInput + " --output probability=" + file);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto got = read_npy(file);
  const auto want = read_npy(kModels + "digits/test_answers.npy");
  ASSERT_TRUE(got.ok() && want.ok());
  ASSERT_EQ(got.value().shape, want.value().shape);
  for (int64_t row = 0; row < 400; ++row) {
    int64_t got_digit = 0;
    int64_t want_digit = 0;
    for (int64_t i = 0; i < 10; ++i) {
      const double p = got.value().get(10 * row + i);
      EXPECT_TRUE(std::abs(p - want.value().get(10 * row + i)) <= 1e-6) << row << ", " << i;
      if (p > got.value().get(10 * row + got_digit)) got_digit = i;
      if (want.value().get(10 * row + i) > want.value().get(10 * row + want_digit)) want_digit = i;
    }
    EXPECT_EQ(got_digit, want_digit) << row;
  }
}

TEST_F(CliRunTest, CompareShowsEveryNodeWithErrorsInBound) {
  const Outcome people = engine("compare " + kModels + "chain.pb --threads 2");
  ASSERT_EQ(people.status, 0) << people.err;
  for (const char* part : {"node \"layer\"", "node \"attend\"", "node \"normalize\"", "ceilings",
                           "of its bound", "bound: fp32 sums of 256 terms", "added", "inherited",
                           "the whole model", "OK: every kernel"}) {
    EXPECT_TRUE(has(people.out, part)) << part << " is missing in\n" << people.out;
  }
  if (test_backend() == Backend::kCuda) {
    EXPECT_TRUE(has(people.out, "linear_cuda_cublaslt ")) << people.out;
    EXPECT_TRUE(has(people.out, "linear_cuda_cublaslt_first")) << people.out;
    EXPECT_TRUE(has(people.out, "attention_cuda_cublaslt ")) << people.out;
  }
}

TEST_F(CliRunTest, CompareAsJsonWithAKernelAskedFor) {
  const std::string split = "softmax_" + std::string(name_of(test_backend())) + "_split";
  const Outcome outcome = engine("compare --json --with " + split + " " + kModels + "softmax.pb");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json out = Json::parse(outcome.out);
  EXPECT_EQ(out["passed"], true);
  EXPECT_GT(out["copy_bytes_per_s"], 1e8);
  EXPECT_TRUE(out["provenance"].contains("commit"));
  const Json& kernels = out["nodes"][0]["kernels"];
  ASSERT_EQ(kernels.size(), 2U);
  EXPECT_EQ(kernels[1]["kernel"], split);
  for (const Json& kernel : kernels) {
    EXPECT_EQ(kernel["passed"], true);
    EXPECT_LE(kernel["error_over_bound"], 1.0);
    EXPECT_GT(kernel["time_us"]["median"], 0.0);
  }
}

TEST_F(CliRunTest, BenchMeasuresWhatItSays) {
  const std::string digits = kModels + "digits.pb --dim batch=1 --runs 120";
  const Outcome outcome = engine("bench --json " + digits);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json out = Json::parse(outcome.out);
  const bool cuda = test_backend() == Backend::kCuda;
  const Json& latency = out["latency_us"];
  EXPECT_EQ(latency.size(), cuda ? 5U : 1U);
  for (const Json& arm : latency) {
    EXPECT_EQ(arm["runs"], 120);
    EXPECT_GT(arm["min"], 0.0);
    EXPECT_LE(arm["min"], arm["median"]);
    EXPECT_LE(arm["median"], arm["p90"]);
    EXPECT_LE(arm["p90"], arm["max"]);
    EXPECT_TRUE(arm["p95"].is_null()) << "read off 6 runs";
  }
  EXPECT_EQ(out.contains("capture_us"), cuda);
  EXPECT_GT(out["runs_per_second"], 0.0);
  EXPECT_EQ(out["kernels"].size(), 4U);
  const Outcome people = engine("bench " + digits);
  ASSERT_EQ(people.status, 0) << people.err;
  EXPECT_TRUE(has(people.out, "throughput")) << people.out;
  EXPECT_EQ(has(people.out, "paid back"), cuda) << people.out;
  EXPECT_EQ(engine("bench " + digits + " --seconds 0").status, 2);
}

TEST_F(CliRunTest, TextAndBinaryAgreeToTheBit) {
  const TempFolder folder;
  for (const std::string name : {"chain", "linear_relu", "attention", "softmax"}) {
    SCOPED_TRACE(name);
    const Json plan = Json::parse(engine("inspect --json " + kModels + name + ".pb").out);
    std::string text_args;
    std::string binary_args;
    for (const std::string output : plan["outputs"]) {
      text_args += " --output " + output + "=" + folder.path("text_" + output + ".npy");
      binary_args += " --output " + output + "=" + folder.path("binary_" + output + ".npy");
    }
    const Outcome text = engine("run " + kModels + name + ".txtpb" + text_args);
    const Outcome binary = engine("run " + kModels + name + ".pb" + binary_args);
    ASSERT_EQ(text.status, 0) << text.err;
    ASSERT_EQ(binary.status, 0) << binary.err;
    EXPECT_TRUE(has(text.err, "is random: normal, seed 0")) << text.err;
    for (const std::string output : plan["outputs"]) {
      EXPECT_EQ(read_bytes(folder.path("text_" + output + ".npy")),
                read_bytes(folder.path("binary_" + output + ".npy")));
    }
  }
}

TEST(CliTest, ShippedBinariesAreTheTexts) {
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    if (entry.path().extension() != ".txtpb") continue;
    SCOPED_TRACE(entry.path().string());
    std::filesystem::path binary = entry.path();
    binary.replace_extension(".pb");
    const std::string copy = kModels + "cli_test_" + std::to_string(getpid()) + ".pb";
    const Outcome outcome = engine("encode " + entry.path().string() + " " + copy);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    if (outcome.status == 0) {
      EXPECT_EQ(read_bytes(copy), read_bytes(binary.string()));
    }
    std::filesystem::remove(copy);
  }
}

TEST(CliTest, EncodeAndDecodeAreInverse) {
  const TempFolder folder;
  const std::string softmax = kModels + "softmax.txtpb";
  ASSERT_EQ(engine("encode " + softmax + " " + folder.path("a.pb")).status, 0);
  ASSERT_EQ(engine("decode " + folder.path("a.pb") + " " + folder.path("b.txtpb")).status, 0);
  ASSERT_EQ(engine("encode " + folder.path("b.txtpb") + " " + folder.path("c.pb")).status, 0);
  EXPECT_EQ(read_bytes(folder.path("a.pb")), read_bytes(folder.path("c.pb")));
  expect_refusal("encode " + softmax + " " + folder.path("a.txtpb"), 2, "ending in .pb");
  expect_refusal("encode " + softmax + " " + folder.path("no/such/folder.pb"), 4, "folder.pb");
}

TEST(CliTest, EveryMalformedModelGetsOneLineAndStatus2) {
  int models = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(ME_SOURCE_DIR) + "/tests/malformed")) {
    const std::string extension = entry.path().extension();
    if (extension != ".txtpb" && extension != ".pb") continue;
    expect_refusal("check " + entry.path().string(), 2, entry.path().filename());
    ++models;
  }
  EXPECT_GE(models, 40);
}

TEST(CliTest, CheckSaysWhatIsValid) {
  const Outcome good = engine("check " + kModels + "digits.pb");
  EXPECT_EQ(good.status, 0);
  EXPECT_TRUE(has(good.out, "a valid model")) << good.out;
  EXPECT_TRUE(has(good.out, "symbols: batch")) << good.out;
  EXPECT_EQ(Json::parse(engine("check --json " + kModels + "digits.pb").out)["valid"], true);

  const TempFolder folder;
  const std::string bad = folder.write("bad.txtpb", "format_version: 7");
  const Outcome json = engine("check --json " + bad);
  EXPECT_EQ(json.status, 2);
  EXPECT_EQ(Json::parse(json.out)["valid"], false);
}

TEST_F(CliRunTest, UsageErrorsExitWith2) {
  const std::string digits = "run " + kModels + "digits.pb";
  EXPECT_EQ(engine("").status, 2);
  EXPECT_EQ(engine("nonsense").status, 2);
  EXPECT_EQ(engine("run").status, 2);
  EXPECT_EQ(engine(digits + " --nonsense").status, 2);
  EXPECT_EQ(engine(digits + " --threads -1").status, 2);
  expect_refusal("run " + kModels + "nothing.pb", 2, "nothing.pb");
  expect_refusal("run " + kModels + "README.md", 2, ".txtpb");
  expect_refusal(digits, 2, "symbol batch has no value: give --dim batch=N");
  expect_refusal(digits + " --dim batch", 2, "expected NAME=VALUE");
  expect_refusal(digits + " --dim batch=-1", 2, "expected a whole number");
  expect_refusal(digits + " --dim batch=1e3", 2, "expected a whole number");
  expect_refusal(digits + " --dim batch=1 --dim batch=2", 2, "expected one value");
  expect_refusal(digits + " --dim rows=1", 2, "expected a symbol of the model (batch)");
  expect_refusal(digits + " --dim batch=1 --device tpu", 2, "expected auto, cpu, cuda or cuda:N");
  expect_refusal(digits + " --dim batch=1 --input nobody=" + kModels + "digits/test_images.npy", 2,
                 "expected an input of the model: \"image\"");
  expect_refusal(digits + " --dim batch=1 --output nobody=y.npy", 2, "\"probability\"");
  expect_refusal(digits + " --dim batch=1 --output probability=y.txt", 2, "ending in .npy");
  expect_refusal(digits + " --dim batch=1 --kernel nobody=add_cpu", 2, "no node \"nobody\"");
  expect_refusal(digits + kDigitsInput + " --dim batch=3", 2, "with batch = 3 from --dim");
  expect_refusal(
      digits + kDigitsInput + " --labels probability=" + kModels + "digits/test_images.npy", 2,
      "expected 400 integers");
}

TEST_F(CliRunTest, NoGpuIsExit3AndNamesTheWayOn) {
  expect_refusal("run " + kModels + "softmax.pb --device cuda:99", 3, "--device cpu");
  const Outcome automatic = engine("run " + kModels + "softmax.pb --device auto");
  EXPECT_EQ(automatic.status, 0);
  const bool gpu = find_cuda_device(0).ok();
  EXPECT_TRUE(has(automatic.err, gpu ? "device: took cuda:0" : "device: took cpu"))
      << automatic.err;
}

TEST_F(CliRunTest, ModelTooLargeForTheMachineIsExit3) {
  const TempFolder folder;
  const std::string model = folder.write("m.txtpb", R"(format_version: 1 graph {
    inputs { name: "x" dtype: F32 dims: [{symbol: "n"}, {size: 16}] }
    nodes { name: "soft" inputs: "x" outputs: "y" softmax {} }
    outputs { name: "y" } })");
  expect_refusal("run " + model + " --dim n=1000000000000", 3, "one run needs");
}

TEST_F(CliRunTest, OutputThatCannotBeWrittenIsExit4AndLeavesNothing) {
  const TempFolder folder;
  expect_refusal("run " + kModels + "softmax.pb --seed 3 --output y=" + folder.path("no/such.npy") +
                     " --input x=" + folder.path("absent.npy"),
                 2, "absent.npy");
  const Outcome outcome = engine("run " + kModels + "digits.pb" + kDigitsInput +
                                 " --output probability=" + folder.path("no/such.npy"));
  EXPECT_EQ(outcome.status, 4) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(folder.path("no")));
}

TEST(CliTest, HelpTeaches) {
  const Outcome help = engine("--help");
  EXPECT_EQ(help.status, 0);
  for (const char* command : {"run", "compare", "bench", "check", "inspect", "encode", "decode"}) {
    EXPECT_TRUE(has(help.out, command));
    const Outcome one = engine(std::string(command) + " --help");
    EXPECT_EQ(one.status, 0);
    EXPECT_GT(one.out.size(), 300u) << command;
  }
  EXPECT_EQ(engine("--version").status, 0);
}

TEST_F(CliRunTest, InspectShowsPlanMemoryAndReasons) {
  const Outcome people = engine("inspect " + kModels + "chain.pb --threads 2");
  ASSERT_EQ(people.status, 0) << people.err;
  const bool cuda = test_backend() == Backend::kCuda;
  const std::string backend(name_of(test_backend()));
  for (const std::string& part :
       {"linear_" + backend, "attention_" + backend, std::string("a view"), std::string("a copy"),
        std::string("arena"), std::string("FLOP"), "not        softmax_" + backend + "_split"}) {
    EXPECT_TRUE(has(people.out, part)) << part << " is missing in\n" << people.out;
  }
  EXPECT_EQ(has(people.out, "taken only by name"), cuda);
  const Json plan = Json::parse(engine("inspect --json --threads 2 " + kModels + "chain.pb").out);
  EXPECT_GE(plan["memory"]["arena_bytes"], plan["memory"]["lower_bound_bytes"]);
  EXPECT_LE(plan["memory"]["arena_bytes"].get<double>(),
            1.05 * plan["memory"]["lower_bound_bytes"].get<double>());
  EXPECT_TRUE(has(engine("inspect " + kModels + "digits.pb --dim batch=400").out, "f32[400, 10]"));
}

TEST_F(CliRunTest, InspectShowsTheWorked1088BytesOfSplitSoftmax) {  // W
  const std::string backend(name_of(test_backend()));
  const Outcome people =
      engine("inspect " + std::string(ME_SOURCE_DIR) +
             "/tests/models/softmax_4x32769.txtpb --kernel soft=softmax_" + backend + "_split");
  ASSERT_EQ(people.status, 0) << people.err;
  EXPECT_TRUE(has(people.out, "workspace  1088 bytes")) << people.out;
}

TEST_F(CliRunTest, InputsOfOtherFloatTypesAreRoundedWithANoticeAndIntegersRefused) {
  const TempFolder folder;
  const std::string model = folder.write("m.txtpb", R"(format_version: 1 graph {
    inputs { name: "x" dtype: BF16 dims: [{size: 2}, {symbol: "n"}] }
    nodes { name: "soft" inputs: "x" outputs: "y" softmax {} }
    outputs { name: "y" } })");
  float values[] = {1, 2.001f, 3, -1, 0, 7};
  const TensorView x = view_of(dense(DType::kF32, {2, 3}), values);
  ASSERT_TRUE(write_npy(folder.path("x.npy"), x).ok());
  ASSERT_TRUE(write_safetensors(folder.path("x.safetensors"), {{"x", x}}).ok());
  for (const std::string& input : {"x=" + folder.path("x.npy"), "x=" + folder.path("x.safetensors"),
                                   folder.path("x.safetensors")}) {
    const Outcome outcome = engine("run " + model + " --input " + input +
                                   " --output y=" + folder.path("y.safetensors"));
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(has(outcome.err, "float32 rounded to bf16")) << outcome.err;
    const auto file = SafetensorsFile::open(folder.path("y.safetensors"));
    ASSERT_TRUE(file.ok());
    ASSERT_NE(file.value()->find("y"), nullptr);
    EXPECT_EQ(file.value()->find("y")->type, ArrayType::kBF16);
    EXPECT_EQ(file.value()->find("y")->shape, (Dims{2, 3}));
  }
  // int64 [2, 3] by hand: the header padded to 128 bytes, then 48 bytes.
  std::string header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }";
  header.resize(117, ' ');
  const std::string npy =
      std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" + std::string(48, '\0');
  const std::string whole = folder.write("i.npy", npy);
  expect_refusal("run " + model + " --input x=" + whole, 2, "found elements of type");
}

// Options that may be given again take one value each time, whatever comes after them.
TEST_F(CliRunTest, TheModelMayStandBehindAnyOption) {
  const TempFolder folder;
  const std::string model = kModels + "digits.pb";
  const std::string input = kModels + "digits/test_images.npy";
  EXPECT_EQ(engine("run --dim batch=400 " + model).status, 0);
  EXPECT_EQ(engine("run --input image=" + input + " " + model).status, 0);
  EXPECT_EQ(
      engine("run --dim batch=1 --output probability=" + folder.path("p.npy") + " " + model).status,
      0);
  EXPECT_EQ(engine("run" + kDigitsInput + kDigitsLabels + " " + model).status, 0);
  expect_refusal("run --dim batch=1 --kernel nobody=add_cpu " + model, 2, "no node \"nobody\"");
  expect_refusal("compare --dim batch=1 --with nobody " + model, 2, "expected a kernel of");
}

TEST_F(CliRunTest, SameSeedSameInputs) {
  const TempFolder folder;
  const std::string run = "run " + kModels + "softmax.pb --repeat 0 --seed ";
  ASSERT_EQ(engine(run + "1 --output y=" + folder.path("a.npy")).status, 0);
  ASSERT_EQ(engine(run + "1 --output y=" + folder.path("b.npy")).status, 0);
  ASSERT_EQ(engine(run + "2 --output y=" + folder.path("c.npy")).status, 0);
  EXPECT_EQ(read_bytes(folder.path("a.npy")), read_bytes(folder.path("b.npy")));
  EXPECT_NE(read_bytes(folder.path("a.npy")), read_bytes(folder.path("c.npy")));
}

}  // namespace
}  // namespace me::testing
