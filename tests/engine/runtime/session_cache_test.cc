#include "engine/runtime/session_cache.h"

#include <gtest/gtest.h>

#include "tests/engine/engine_test.h"
#include "tests/ops/kernel_test.h"

namespace me::testing {
namespace {

class SessionCacheTest : public KernelsTest {
 protected:
  SessionCache cache_ = make_cache();

  Session* get(int64_t rows) {
    auto session = cache_.get({{"rows", rows}});
    if (!session.ok()) throw std::runtime_error(session.error().to_string());
    return session.value();
  }

 private:
  static SessionCache make_cache() {
    PlanOptions options;
    options.device = test_device()->info();
    return SessionCache(graph_from_text(R"(
      inputs { name: "x" dtype: F32 dims: [{symbol: "rows"}, {size: 3}] }
      nodes { name: "soft" inputs: "x" outputs: "y" softmax {} }
      outputs { name: "y" })"),
                        options, 2);
  }
};

TEST_F(SessionCacheTest, AShapeThatComesAgainFindsItsSession) {
  Session* const two = get(2);
  Session* const five = get(5);
  EXPECT_NE(two, five);
  EXPECT_EQ(two->output(0).shape, (Dims{2, 3}));
  EXPECT_EQ(five->output(0).shape, (Dims{5, 3}));
  EXPECT_EQ(get(2), two);
  EXPECT_EQ(get(5), five);
}

TEST_F(SessionCacheTest, TheOneNotAskedForLongestGoes) {
  Session* const two = get(2);
  get(5);
  get(2);
  get(7);  // in place of 5
  EXPECT_EQ(cache_.size(), 2U);
  EXPECT_EQ(get(2), two);
}

TEST_F(SessionCacheTest, AShapeThatCannotBePlannedLeavesTheOthers) {
  Session* const two = get(2);
  EXPECT_FALSE(cache_.get({{"rows", -1}}).ok());
  EXPECT_EQ(get(2), two);
}

}  // namespace
}  // namespace me::testing
