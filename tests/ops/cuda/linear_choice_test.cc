// Whether the cost models of linear's CUDA kernels pick well: by the times of every configuration,
// measured once on an H200, what a plan would take without any measurement. (bench/config_times.py;
// commit 498b077, and a196b05 for the six products of 2048^3 and above and of K = 128.)
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "ops/registry.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

// By case, as in linear/512x512x512/NK/bf16, and kernel[configuration]: microseconds.
using Times = std::map<std::string, std::map<std::string, double>>;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

Times read_times(const std::string& path) {
  Times times;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> fields = split(line, '\t');  // case, kernel, configuration, us
    times[fields.at(0)][fields.at(1) + "[" + fields.at(2) + "]"] = std::stod(fields.at(3));
  }
  return times;
}

DeviceInfo h200() {
  DeviceInfo device;
  device.backend = Backend::kCuda;
  device.name = "NVIDIA H200";
  device.compute_capability = 90;
  device.multiprocessors = 132;
  device.memory_bytes = int64_t{139} << 30;
  device.l2_bytes = int64_t{60} << 20;
  device.shared_bytes = 232448;
  return device;
}

PreparedCase problem_of(const std::string& name) {
  const std::vector<std::string> fields = split(name, '/');  // op, sizes, layout, type
  const std::vector<std::string> sizes = split(fields.at(1), 'x');
  const std::string& layout = fields.at(2);
  const int64_t m = std::stoll(sizes.at(0)), n = std::stoll(sizes.at(1)),
                k = std::stoll(sizes.at(2));
  const DType type = fields.at(3) == "bf16"  ? DType::kBF16
                     : fields.at(3) == "f16" ? DType::kF16
                                             : DType::kF32;
  PreparedCase c =
      make_problem(fields.at(0), {{"weight_layout", layout}, {"activation", std::string("RELU")}},
                   {dense(type, {m, k}), dense(type, layout == "NK" ? Dims{n, k} : Dims{k, n}),
                    dense(type, {n})});
  c.problem.inputs[1].constant = c.problem.inputs[2].constant = true;
  c.problem.device = h200();
  return c;
}

TEST(LinearChoiceTest, ThePickIsWithinFivePercentOfTheBest) {
  if (find_kernel("linear_cuda_sm90") == nullptr) GTEST_SKIP() << "a build without sm_90a";
  const Times times = read_times(ME_SOURCE_DIR "/tests/ops/cuda/linear_config_times.tsv");
  ASSERT_GE(times.size(), 32u);
  for (const auto& [name, of_case] : times) {
    SCOPED_TRACE(name);
    const PreparedCase c = problem_of(name);
    std::string pick;
    double least_us = 0;
    for (const KernelEntry* kernel : kernels()) {
      if (kernel->op != "linear" || kernel->backend != Backend::kCuda || kernel->baseline) continue;
      const Support support = kernel->supports(c.problem);
      if (!support.ok || (!pick.empty() && support.cost_us >= least_us)) continue;
      least_us = support.cost_us;
      const auto config = kernel->configs == nullptr ? "" : kernel->configs(c.problem)[0].name;
      pick = std::string(kernel->name) + "[" + config + "]";
    }
    ASSERT_FALSE(pick.empty());
    std::string best = of_case.begin()->first;
    for (const auto& [config, us] : of_case) {
      if (us < of_case.at(best)) best = config;
    }
    ASSERT_TRUE(of_case.contains(pick)) << pick << " was not measured or is far from the best";
    EXPECT_LE(of_case.at(pick), 1.05 * of_case.at(best)) << pick << " against " << best;
  }
}

}  // namespace
}  // namespace me::testing
