// linear_vs_onednn: Y = relu(X·W + b) in fp32, through the engine (a session over a graph of one
// node, which takes linear_cpu_onednn) and through a direct call of oneDNN's matmul with the same
// layout and its own fused bias and ReLU. The arms alternate, both are checked against the oracle
// first. Each time of ours stands between two of the direct call; the ratio (their mean over ours:
// above 1 ours is faster) is a median over such rounds, and so is the control, the first direct
// time over the second. A line whose control is far from 1 was disturbed and says nothing. Exits
// with 1 where an arm is wrong.
//
//   linear_vs_onednn [threads [seconds for each line]]
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "bench/bench_case.h"
#include "engine/runtime/session.h"
#include "engine/runtime/statistics.h"

namespace me::bench {
namespace {

using Tag = dnnl::memory::format_tag;

// The direct call, everything made beforehand.
class Direct {
 public:
  Direct(const std::vector<void*>& inputs, void* output, int64_t m, int64_t n, int64_t k, bool nk) {
    const auto f32 = dnnl::memory::data_type::f32;
    const dnnl::memory::desc x({m, k}, f32, Tag::ab);
    const dnnl::memory::desc w({k, n}, f32, nk ? Tag::ba : Tag::ab);
    const dnnl::memory::desc bias({1, n}, f32, Tag::ab);
    const dnnl::memory::desc y({m, n}, f32, Tag::ab);
    dnnl::post_ops post_ops;
    dnnl::primitive_attr attributes;
#if DNNL_VERSION_MAJOR >= 3
    post_ops.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
    attributes.set_post_ops(post_ops);
    const dnnl::matmul::primitive_desc desc(engine_, x, w, bias, y, attributes);
#else
    post_ops.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
    attributes.set_post_ops(post_ops);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x, w, bias, y), attributes, engine_);
#endif
    matmul_ = dnnl::matmul(desc);
    arguments_ = {{DNNL_ARG_SRC, dnnl::memory(x, engine_, inputs[0])},
                  {DNNL_ARG_WEIGHTS, dnnl::memory(w, engine_, inputs[1])},
                  {DNNL_ARG_BIAS, dnnl::memory(bias, engine_, inputs[2])},
                  {DNNL_ARG_DST, dnnl::memory(y, engine_, output)}};
  }
  void run() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

// After one run that brings the arm's own memory back into the caches.
template <class Run>
double time_us(int repeats, const Run& run) {
  run();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) run();
  const std::chrono::duration<double, std::micro> span = std::chrono::steady_clock::now() - start;
  return span.count() / repeats;
}

// The case as a graph of one node. Its weights are weights of the graph, or inputs.
std::shared_ptr<const Graph> graph_of(const BenchCase& c, const AttrMap& attrs, bool constant) {
  auto graph = std::make_shared<Graph>();
  const Problem& p = c.problem();
  Node node;
  node.name = "layer";
  node.op = p.op;
  node.attrs = p.op->parse(attrs).value();
  const auto add = [&](const TensorDesc& desc, ValueKind kind) {
    Value value;
    value.name = fmt::format("v{}", graph->values.size());
    value.kind = kind;
    value.dtype = desc.dtype;
    for (int64_t extent : desc.shape) value.dims.push_back({extent, {}});
    graph->values.push_back(value);
    return static_cast<int>(graph->values.size()) - 1;
  };
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const bool weight = constant && i > 0;
    node.inputs.push_back(add(p.inputs[i], weight ? ValueKind::kWeight : ValueKind::kInput));
    if (weight) {
      graph->values.back().data = {static_cast<const std::byte*>(c.input(i)),
                                   static_cast<size_t>(p.inputs[i].bytes())};
    } else {
      graph->inputs.push_back(node.inputs.back());
    }
  }
  graph->outputs.push_back(add(p.outputs[0], ValueKind::kIntermediate));
  graph->values.back().producer = 0;
  node.outputs = graph->outputs;
  graph->nodes.push_back(std::move(node));
  return graph;
}

// False where an arm is wrong.
bool compare(int64_t m, int64_t n, int64_t k, bool nk, bool constant, int threads, double seconds) {
  CaseSpec spec = linear_case(m, n, k, nk);
  spec.constant_weights = constant;
  const BenchCase c(spec, DType::kF32, {.backend = Backend::kCpu, .threads = threads});
  PlanOptions options;
  options.device = c.problem().device;
  auto plan = Plan::make(graph_of(c, spec.attrs, constant), options);
  if (!plan.ok()) {
    fmt::print("{}\n", plan.error().to_string());
    return false;
  }
  auto created = Session::create(plan.value());
  if (!created.ok()) {
    fmt::print("{}\n", created.error().to_string());
    return false;
  }
  Session& session = *created.value();
  // Both arms read the same memory: copies would push each other out of the caches.
  std::vector<void*> inputs{c.input(0), c.input(1), c.input(2)};
  for (size_t i = 0; i < plan.value()->graph().inputs.size(); ++i) {
    const TensorView buffer = session.input(i);
    std::memcpy(buffer.data, inputs[i], static_cast<size_t>(buffer.bytes()));
    inputs[i] = buffer.data;
  }
  const TensorDesc& result = c.problem().outputs[0];
  auto output = Memory::on_device(Device::open(DeviceInfo{}), result.bytes());
  if (!output.ok()) {
    fmt::print("{}\n", output.error().to_string());
    return false;
  }
  Direct direct(inputs, output.value().data(), m, n, k, nk);
  const auto run_ours = [&] { session.run(); };
  const auto run_direct = [&] { direct.run(); };

  const std::string shape = fmt::format("{}x{}x{} {} {}", m, n, k, nk ? "NK" : "KN",
                                        constant ? "weights constant" : "weights vary");
  for (bool is_ours : {true, false}) {
    void* const y = is_ours ? session.output(0).data : output.value().data();
    std::memset(y, 0xFF, static_cast<size_t>(result.bytes()));
    if (is_ours) {
      run_ours();
    } else {
      run_direct();
    }
    if (const CheckReport report = c.check(y); !report.passed) {
      fmt::print("{}: {} is wrong: {}\n", shape, is_ours ? "the engine" : "direct oneDNN",
                 report.message);
      return false;
    }
  }

  constexpr double kWantedUs = 2000;  // one timing spans many clock ticks
  constexpr size_t kLeastRounds = 11;
  const int repeats = 1 + static_cast<int>(kWantedUs / std::max(1.0, time_us(1, run_direct)));
  std::vector<double> ours, direct_us, ratio, control;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (ratio.size() < kLeastRounds || std::chrono::steady_clock::now() < end) {
    const double before = time_us(repeats, run_direct);
    const double here = time_us(repeats, run_ours);
    const double after = time_us(repeats, run_direct);
    ours.push_back(here);
    direct_us.push_back((before + after) / 2);
    ratio.push_back((before + after) / 2 / here);
    control.push_back(before / after);
  }
  fmt::print(
      "{:<40} ours {:>9.1f} us, direct {:>9.1f} us, ratio {:.3f}, control {:.3f}, "
      "{} rounds; {}\n",
      shape, median(ours), median(direct_us), median(ratio), median(control), ratio.size(),
      plan.value()->steps()[0].reason);
  return true;
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : omp_get_max_threads();
  const double seconds = argc > 2 ? std::atof(argv[2]) : 3;
  if (threads < 1 || !(seconds > 0)) {
    fmt::print(stderr, "usage: linear_vs_onednn [threads [seconds for each line]]\n");
    return 2;
  }
  omp_set_num_threads(threads);  // for the direct call
  constexpr int64_t kShapes[][3] = {
      {512, 512, 512}, {1024, 1024, 1024}, {64, 256, 784},   {64, 512, 784},     {1, 512, 784},
      {8, 1024, 1024}, {32, 1024, 1024},   {333, 777, 1000}, {2048, 4096, 1024},
  };
  bool right = true;
  for (const auto& [m, n, k] : kShapes) {
    for (bool nk : {false, true}) {
      for (bool constant : {true, false}) {
        right = compare(m, n, k, nk, constant, threads, seconds) && right;
      }
    }
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace me::bench

int main(int argc, char** argv) { return me::bench::main(argc, argv); }
