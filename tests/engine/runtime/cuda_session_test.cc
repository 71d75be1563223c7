// What a session promises on a GPU alone.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/runtime/session.h"
#include "ops/cuda/stream.h"
#include "tests/engine/engine_test.h"

namespace me::testing {
namespace {

class CudaSessionTest : public KernelsTest {
 protected:
  static std::unique_ptr<Session> softmax_session() {
    auto session = Session::create(plan_for(graph_from_text(R"(
      inputs { name: "x" dtype: F32 dims: [{size: 4}, {size: 32769}] }
      nodes { name: "soft" inputs: "x" outputs: "y" softmax {} }
      nodes { name: "sum" inputs: ["y", "x"] outputs: "z" add {} }
      outputs { name: "z" })")));
    if (!session.ok()) throw std::runtime_error(session.error().to_string());
    return std::move(session).value();
  }
};

// Holds a stream until it is let go, or for five seconds.
struct Gate {
  std::atomic<bool> open = false;
  std::atomic<bool> timed_out = false;

  static void hold(void* gate) {
    auto& self = *static_cast<Gate*>(gate);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!self.open) {
      if (std::chrono::steady_clock::now() > end) {
        self.timed_out = true;
        return;
      }
      std::this_thread::yield();
    }
  }
};

// The stream is held before the run, so that a launch which waited for the GPU would wait for the
// gate, which opens only after it.
TEST_F(CudaSessionTest, ARunStartsWithoutWaitingForTheDevice) {
  const auto session = softmax_session();
  session->run();
  Gate gate;
  const auto stream = static_cast<cudaStream_t>(session->device().stream());
  ME_CUDA_CHECK(cudaLaunchHostFunc(stream, Gate::hold, &gate));
  session->copy_inputs();
  session->launch();
  session->launch_eager();
  session->copy_outputs();
  gate.open = true;
  session->wait();
  EXPECT_FALSE(gate.timed_out);
}

// A capture refuses cudaMalloc, cudaFree and every wait, so that create() alone shows that no
// kernel does any of it. This shows that the refusal works.
TEST_F(CudaSessionTest, CaptureRefusesAllocationAndWaiting) {
  const auto session = softmax_session();
  Device& device = session->device();
  const auto stream = static_cast<cudaStream_t>(device.stream());
  EXPECT_THROW(device.capture([](void*) {
    void* memory = nullptr;
    ME_CUDA_CHECK(cudaMalloc(&memory, 1024));
  }),
               CudaError);
  EXPECT_THROW(device.capture([stream](void*) { ME_CUDA_CHECK(cudaStreamSynchronize(stream)); }),
               CudaError);
  session->run();  // and the device still works
}

// Other programs come and go on the device, so that one round may see them; a run that took memory
// would show in every round.
TEST_F(CudaSessionTest, RunsTakeNoDeviceMemory) {
  const auto session = softmax_session();
  session->run();
  bool unchanged = false;
  for (int round = 0; round < 20 && !unchanged; ++round) {
    const int64_t before = session->device().free_bytes();
    for (int i = 0; i < 100; ++i) session->run();
    unchanged = session->device().free_bytes() == before;
  }
  EXPECT_TRUE(unchanged);
}

TEST_F(CudaSessionTest, StartupCostsAreMeasured) {
  const auto session = softmax_session();
  const StartupCost& cost = session->startup();
  for (const double us : {cost.memory_us, cost.modules_us, cost.warm_up_us, cost.capture_us}) {
    EXPECT_GT(us, 0);
  }
}

}  // namespace
}  // namespace me::testing
