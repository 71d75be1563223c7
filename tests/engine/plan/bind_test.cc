#include "engine/plan/bind.h"

#include "tests/engine/engine_test.h"

namespace me::testing {
namespace {

std::shared_ptr<const Graph> two_inputs() {
  return graph_from_text(R"(
    inputs { name: "a" dtype: F32 dims: [{symbol: "rows"}, {size: 4}] }
    inputs { name: "b" dtype: F32 dims: [{symbol: "rows"}, {symbol: "columns"}] }
    nodes { name: "sa" inputs: "a" outputs: "ya" softmax {} }
    nodes { name: "sb" inputs: "b" outputs: "yb" softmax {} }
    outputs { name: "ya" } outputs { name: "yb" })");
}

std::string error_of(const Symbols& given, const std::map<std::string, Dims>& shapes) {
  const auto symbols = bind_symbols(*two_inputs(), given, shapes);
  return symbols.ok() ? "" : symbols.error().to_string();
}

TEST(BindTest, ShapesAndCommandLineTogether) {
  const auto symbols = bind_symbols(*two_inputs(), {{"columns", 7}}, {{"a", {3, 4}}});
  ASSERT_TRUE(symbols.ok()) << symbols.error().to_string();
  EXPECT_EQ(symbols.value(), (Symbols{{"rows", 3}, {"columns", 7}}));
}

TEST(BindTest, ZeroIsANumber) { EXPECT_EQ(error_of({}, {{"a", {0, 4}}, {"b", {0, 0}}}), ""); }

TEST(BindTest, FaultsAreNamed) {
  EXPECT_NE(error_of({{"columns", 7}}, {}).find("symbol rows has no value"), std::string::npos);
  EXPECT_NE(error_of({{"depth", 7}}, {}).find("expected a symbol of the model (columns, rows)"),
            std::string::npos);
  EXPECT_NE(error_of({}, {{"a", {3, 5}}}).find("found shape [3, 5], expected [rows, 4]"),
            std::string::npos);
  EXPECT_NE(error_of({}, {{"a", {3}}}).find("found shape [3], expected [rows, 4]"),
            std::string::npos);
  EXPECT_NE(error_of({}, {{"a", {3, 4}}, {"b", {2, 9}}}).find("with rows = 3 from input \"a\""),
            std::string::npos);
  EXPECT_NE(error_of({{"rows", 5}}, {{"a", {3, 4}}}).find("with rows = 5 from --dim"),
            std::string::npos);
  EXPECT_NE(error_of({}, {{"ya", {3, 4}}}).find("no such input"), std::string::npos);
}

}  // namespace
}  // namespace me::testing
