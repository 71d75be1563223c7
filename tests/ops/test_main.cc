// main() of the tests that run on either backend.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/ops/kernel_test.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string missing = me::testing::missing_device();
  if (!missing.empty() && !GTEST_FLAG_GET(list_tests)) {
    std::printf("[  SKIPPED ] every test: %s\n",
                missing.c_str());  // CTest knows it by the brackets
    return 0;
  }
  return RUN_ALL_TESTS();
}
