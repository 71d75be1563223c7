#include "engine/runtime/latency.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace me {
namespace {

TEST(LatencyTest, FirstRunIsNotAmongTheSamples) {
  int calls = 0;
  const Latency latency = measure_latency([&] { ++calls; }, 5, 10);
  EXPECT_EQ(calls, 6);
  EXPECT_EQ(latency.runs, 5);
  EXPECT_LE(latency.min_us, latency.median_us);
  EXPECT_LE(latency.median_us, latency.max_us);
}

TEST(LatencyTest, StopsWhenTheTimeIsUp) {
  int calls = 0;
  const auto slow = [&] {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  const Latency latency = measure_latency(slow, 1000, 0.05);
  EXPECT_LE(calls, 5);
  EXPECT_GE(latency.min_us, 20000);
}

}  // namespace
}  // namespace me
