// Models and sessions for the tests of plan, runtime and commands.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>

#include "engine/plan/plan.h"
#include "tests/engine/temp_folder.h"

namespace me::testing {

// Tests that need every kernel of the test backend (see tests/ops/kernel_test.h): skipped, with the
// reason, where the build leaves one out.
class KernelsTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

// The graph `text` (the fields of a microengine.Graph, as protobuf text). Aborts the test by an
// exception where the model is refused.
std::shared_ptr<const Graph> graph_from_text(const std::string& text);

// A plan for the test device, with `threads` threads on a CPU; an exception where there is none.
std::shared_ptr<const Plan> plan_for(std::shared_ptr<const Graph> graph,
                                     const Symbols& symbols = {}, int threads = 2);

// The step of the node called `name`.
const Step& step_of(const Plan& plan, std::string_view name);

}  // namespace me::testing
