// What load_model makes of good models, what convert_model writes, and what infer_types finds.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>

#include "ops/registry.h"
#include "tests/engine/model/model_test.h"

namespace me::testing {
namespace {

// Every op, every form of weight that needs no other file, symbols and claims; nodes out of order.
constexpr std::string_view kEveryOp = R"pb(
  format_version: 1
  producer: "by hand"
  doc: "Every op once: größer"
  graph {
    name: "every op"
    inputs {
      name: "x"
      dtype: F32
      dims { symbol: "batch" }
      dims { size: 8 }
    }
    inputs {
      name: "q"
      dtype: F16
      dims { size: 1 }
      dims { size: 4 }
      dims { symbol: "s" }
      dims { size: 16 }
    }
    inputs {
      name: "kv"
      dtype: F16
      dims { size: 1 }
      dims { size: 2 }
      dims { symbol: "s" }
      dims { size: 16 }
    }
    weights {
      name: "w"
      dtype: F32
      dims: [ 4, 8 ]
      raw: "\000\001\002\003\004\005\006\007\010\011\012\013\014\015\016\017\020\021\022\023\024\025\026\027\030\031\032\033\034\035\036\037\000\001\002\003\004\005\006\007\010\011\012\013\014\015\016\017\020\021\022\023\024\025\026\027\030\031\032\033\034\035\036\037\000\001\002\003\004\005\006\007\010\011\012\013\014\015\016\017\020\021\022\023\024\025\026\027\030\031\032\033\034\035\036\037\000\001\002\003\004\005\006\007\010\011\012\013\014\015\016\017\020\021\022\023\024\025\026\027\030\031\032\033\034\035\036\037"
    }
    weights {
      name: "b"
      dtype: F32
      dims: 4
      numbers { values: [ 0.1, -0.0, 1e-40, inf ] }
    }
    weights {
      name: "none"
      dtype: BF16
      dims: [ 0, 3 ]
      numbers {}
    }
    nodes {
      name: "grad"
      inputs: [ "p", "twice" ]
      outputs: "dx"
      softmax_grad {}
    }
    nodes {
      name: "add"
      inputs: [ "p", "p" ]
      outputs: "twice"
      add {}
    }
    nodes {
      name: "soft"
      inputs: "fc"
      outputs: "p"
      softmax {}
    }
    nodes {
      name: "fc"
      inputs: [ "x", "w", "b" ]
      outputs: "fc"
      linear { weight_layout: NK activation: RELU output_dtype: F32 }
    }
    nodes {
      name: "attend"
      inputs: [ "q", "kv", "kv" ]
      outputs: "o"
      attention { scale: 0 causal: true causal_offset: TOP_LEFT }
    }
    nodes {
      name: "turn"
      inputs: "o"
      outputs: "turned"
      transpose { permutation: [ 0, 2, 1, 3 ] }
    }
    nodes {
      name: "flat"
      inputs: "turned"
      outputs: "flat"
      reshape {
        dims { symbol: "s" }
        dims { size: -1 }
      }
    }
    nodes {
      name: "cut"
      inputs: "dx"
      outputs: "cut"
      slice { axis: -1 start: 1 end: 4 step: 2 }
    }
    nodes {
      name: "wide"
      inputs: "cut"
      outputs: "wide"
      broadcast {
        dims { size: 3 }
        dims { symbol: "batch" }
        dims { size: 2 }
      }
    }
    outputs {
      name: "wide"
      dtype: F32
      dims { size: 3 }
      dims { symbol: "batch" }
      dims { size: 2 }
    }
    outputs { name: "flat" }
    outputs { name: "none" }
    values {
      name: "fc"
      dtype: F32
      dims { symbol: "batch" }
      dims { size: 4 }
    }
    values { name: "p" }
  }
)pb";

std::string in_words(const Dim& dim) {
  return dim.symbol.empty() ? std::to_string(dim.size) : dim.symbol;
}
std::string in_words(const std::vector<Dim>& dims) {
  std::string out;
  for (const Dim& dim : dims) out += in_words(dim) + ",";
  return out;
}

std::string in_words(const AttrValue& value) {
  struct Visitor {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return std::to_string(v); }
    std::string operator()(const std::string& v) const { return "'" + v + "'"; }
    std::string operator()(const std::vector<int64_t>& v) const {
      std::string out;
      for (int64_t i : v) out += std::to_string(i) + ",";
      return out;
    }
    std::string operator()(const std::vector<Dim>& v) const { return in_words(v); }
  };
  return std::visit(Visitor{}, value);
}

// All that a graph says, apart from the file's name.
std::string in_words(const Graph& graph) {
  std::ostringstream out;
  out << graph.name << "|" << graph.doc << "\n";
  for (const Value& v : graph.values) {
    out << v.name << " " << static_cast<int>(v.kind) << " " << name_of(v.dtype) << " "
        << in_words(v.dims) << " by " << v.producer << " ";
    for (std::byte b : v.data) out << static_cast<int>(b) << ",";
    out << "\n";
  }
  for (const Node& n : graph.nodes) {
    out << n.name << " " << n.op->name << " ";
    for (const auto& [name, value] : n.fields) out << name << "=" << in_words(value) << " ";
    for (int i : n.inputs) out << i << " ";
    out << "->";
    for (int i : n.outputs) out << " " << i;
    out << "\n";
  }
  for (int i : graph.inputs) out << i << " ";
  for (int i : graph.outputs) out << i << " ";
  for (const TypeClaim& c : graph.claims) {
    out << c.value << (c.dtype ? name_of(*c.dtype) : "") << in_words(c.dims) << c.field << "\n";
  }
  for (const std::string& s : graph.symbols) out << s << " ";
  return out.str();
}

void convert(const std::string& from, const std::string& to) {
  const Status status = convert_model(from, to);
  EXPECT_TRUE(status.ok()) << status.error().to_string();
}

const Value& value_of(const Graph& graph, std::string_view name) {
  return graph.values.at(static_cast<size_t>(graph.find_value(name)));
}

std::vector<std::string> node_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes) names.push_back(node.name);
  return names;
}

TEST(LoadModel, TextAndBinaryGiveEqualGraphs) {
  const TempFolder folder;
  const std::string text = folder.write("m.txtpb", kEveryOp);
  convert(text, folder.path("m.pb"));
  const Graph a = load(text);
  const Graph b = load(folder.path("m.pb"));
  EXPECT_EQ(a.nodes.size(), 9u);
  EXPECT_EQ(in_words(a), in_words(b));
  EXPECT_EQ(a.file, text);
}

TEST(LoadModel, EveryOpLoads) {
  const TempFolder folder;
  const Graph graph = load(folder.write("m.txtpb", kEveryOp));
  std::set<std::string_view> loaded;
  for (const Node& node : graph.nodes) loaded.insert(node.op->name);
  for (const OpDef* op : ops()) EXPECT_TRUE(loaded.contains(op->name)) << op->name;
}

TEST(LoadModel, FieldsAreThoseThatTheModelSets) {
  const TempFolder folder;
  const Graph graph = load(folder.write("m.txtpb", kEveryOp));
  std::map<std::string, std::string> fields;
  for (const Node& node : graph.nodes) {
    for (const auto& [name, value] : node.fields)
      fields[node.name] += name + "=" + in_words(value) + " ";
  }
  const std::map<std::string, std::string> expected{
      {"fc", "activation='RELU' output_dtype='F32' weight_layout='NK' "},
      {"attend", "causal=true causal_offset='TOP_LEFT' scale=0.000000 "},
      {"turn", "permutation=0,2,1,3, "},
      {"flat", "dims=s,-1, "},
      {"cut", "axis=-1 end=4 start=1 step=2 "},
      {"wide", "dims=3,batch,2, "},
  };
  EXPECT_EQ(fields, expected);
}

TEST(LoadModel, NodesRunAfterTheirProducersAndOtherwiseInTheFilesOrder) {
  const TempFolder folder;
  const Graph graph = load(folder.write("m.txtpb", kEveryOp));
  EXPECT_EQ(node_names(graph), (std::vector<std::string>{"fc", "soft", "add", "grad", "attend",
                                                         "turn", "flat", "cut", "wide"}));
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (int output : graph.nodes[n].outputs) {
      EXPECT_EQ(graph.values[static_cast<size_t>(output)].producer, static_cast<int>(n));
    }
    for (int input : graph.nodes[n].inputs) {
      EXPECT_LT(graph.values[static_cast<size_t>(input)].producer, static_cast<int>(n));
    }
  }
}

TEST(LoadModel, AnOrderThatIsLegalStays) {
  const TempFolder folder;
  const Graph graph = load(folder.write("m.txtpb", R"(format_version: 1 graph {
    inputs { name: "x" dtype: F32 dims { size: 1 } }
    nodes { name: "c" inputs: ["x", "x"] outputs: "1" add {} }
    nodes { name: "z" inputs: ["1", "1"] outputs: "2" add {} }
    nodes { name: "a" inputs: ["x", "x"] outputs: "3" add {} }
    nodes { name: "b" inputs: ["2", "3"] outputs: "4" add {} }
    outputs { name: "4" } })"));
  EXPECT_EQ(node_names(graph), (std::vector<std::string>{"c", "z", "a", "b"}));
}

TEST(LoadModel, ValuesAreFoundByName) {
  const TempFolder folder;
  const Graph graph = load(folder.write("m.txtpb", kEveryOp));
  for (size_t v = 0; v < graph.values.size(); ++v) {
    EXPECT_EQ(graph.find_value(graph.values[v].name), static_cast<int>(v));
  }
  for (const char* absent : {"", "a", "fc2", "zzz", "X"}) EXPECT_EQ(graph.find_value(absent), -1);
  EXPECT_EQ(value_of(graph, "x").kind, ValueKind::kInput);
  EXPECT_EQ(value_of(graph, "w").kind, ValueKind::kWeight);
  EXPECT_EQ(value_of(graph, "o").kind, ValueKind::kIntermediate);
  EXPECT_EQ(value_of(graph, "o").dtype, DType::kF16);
}

TEST(LoadModel, OutputsMayBeInputsAndWeights) {
  const TempFolder folder;
  const Graph graph = load(folder.write("m.txtpb", R"(format_version: 1 graph {
    inputs { name: "x" dtype: F32 dims { size: 0 } }
    weights { name: "w" dtype: F32 dims: 1 numbers { values: 5 } }
    outputs { name: "w" } outputs { name: "x" dims { size: 0 } } })"));
  EXPECT_EQ(graph.outputs, (std::vector<int>{1, 0}));
}

TEST(LoadModel, NamesMayHoldAnythingPrintable) {
  const TempFolder folder;
  const std::string longest(256, 'n');
  const Graph graph = load(folder.write("m.txtpb", R"(format_version: 1 graph {
    inputs { name: "\"größe\\ 'x'" dtype: F32 dims { size: 1 } }
    inputs { name: ")" + longest + R"(" dtype: F32 dims { size: 1 } }
    outputs { name: "\"größe\\ 'x'" } })"));
  EXPECT_EQ(graph.find_value("\"größe\\ 'x'"), 0);
  EXPECT_EQ(graph.find_value(longest), 1);
}

TEST(LoadModel, PackedAndUnpackedNumbersAreOne) {
  const TempFolder folder;
  using namespace std::string_literals;
  // Weight "w" F32 with dims and numbers packed, each apart, and in two packed parts.
  const std::string one = "\x00\x00\x00\x00\x00\x00\xf0\x3f"s;
  const std::string head = "\x0a\x01w\x10\x01"s;
  const std::vector<std::string> weights{
      head + "\x1a\x02\x01\x02"s + "\x22\x12\x0a\x10"s + one + one,
      head + "\x18\x01\x18\x02"s + "\x22\x12\x09"s + one + "\x09" + one,
      head + "\x1a\x01\x01\x1a\x01\x02"s + "\x22\x13\x0a\x08"s + one + "\x09" + one,
  };
  for (const std::string& weight : weights) {
    const std::string graph =
        "\x1a"s + static_cast<char>(weight.size()) + weight + "\x2a\x03\x0a\x01w"s;
    const Graph loaded =
        load(folder.write("m.pb", "\x08\x01\x22"s + static_cast<char>(graph.size()) + graph));
    ASSERT_EQ(loaded.values.size(), 1u);
    EXPECT_EQ(in_words(loaded.values[0].dims), "1,2,");
    EXPECT_EQ(floats_of(loaded.values[0]), (std::vector<float>{1, 1}));
  }
}

TEST(InferTypes, SymbolsSettleShapes) {
  const TempFolder folder;
  const Graph graph = load(folder.write("m.txtpb", kEveryOp));
  EXPECT_EQ(graph.symbols, (std::vector<std::string>{"batch", "s"}));
  const auto shape_under = [&](const Symbols& symbols, std::string_view name) {
    const auto types = infer_types(graph, symbols);
    return types.ok() ? to_string(types.value()[static_cast<size_t>(graph.find_value(name))])
                      : types.error().to_string();
  };
  EXPECT_EQ(shape_under({}, "wide"), "f32[3, ?, 2]");
  EXPECT_EQ(shape_under({{"batch", 1}}, "wide"), "f32[3, 1, 2]");
  EXPECT_EQ(shape_under({{"batch", 0}}, "fc"), "f32[0, 4]");
  EXPECT_EQ(shape_under({{"s", 5}}, "flat"), "f16[5, 64]");
}

TEST(InferTypes, FaultsThatOnlySymbolsBring) {
  const TempFolder folder;
  const Graph graph = load(folder.write("m.txtpb", R"(format_version: 1 graph {
    inputs { name: "x" dtype: F32 dims { symbol: "n" } dims { symbol: "m" } }
    nodes { name: "sum" inputs: ["x", "x"] outputs: "y" add {} }
    nodes { name: "pair" inputs: "y" outputs: "z" reshape { dims { size: -1 } dims { size: 2 } } }
    outputs { name: "z" }
    values { name: "y" dims { size: 4 } dims { symbol: "n" } } })"));
  const auto error_under = [&](const Symbols& symbols) {
    const auto types = infer_types(graph, symbols);
    return types.ok() ? std::string("none") : types.error().to_string();
  };
  EXPECT_EQ(error_under({{"n", 4}, {"m", 4}}), "none");
  const std::string start = folder.path("m.txtpb") + ": ";
  EXPECT_EQ(error_under({{"n", 4}, {"m", 6}}),
            start +
                "node \"y\": graph.values[0]: found f32[4, 6], expected [4, n] as the model "
                "claims");
  EXPECT_EQ(error_under({{"n", 4}, {"m", -1}}),
            start + "symbol \"m\": found -1, expected 0 or more");
  EXPECT_EQ(error_under({{"n", int64_t{1} << 30}, {"m", int64_t{1} << 30}}),
            start +
                "node \"x\": graph.inputs[0].dims: found f32[1073741824, 1073741824], expected "
                "extents that multiply to less than 2^60");
  EXPECT_EQ(error_under({{"n", 3}, {"m", 3}}).rfind(start + "node \"pair\": reshape.dims: ", 0),
            0u);
}

TEST(ConvertModel, RoundTripGivesEqualBytes) {
  const TempFolder folder;
  const std::string text = folder.write("a.txtpb", kEveryOp);
  convert(text, folder.path("b.pb"));
  convert(folder.path("b.pb"), folder.path("c.txtpb"));
  convert(folder.path("c.txtpb"), folder.path("d.pb"));
  convert(folder.path("d.pb"), folder.path("e.txtpb"));
  EXPECT_EQ(read_bytes(folder.path("b.pb")), read_bytes(folder.path("d.pb")));
  EXPECT_EQ(read_bytes(folder.path("c.txtpb")), read_bytes(folder.path("e.txtpb")));
  const std::string written = read_bytes(folder.path("c.txtpb"));
  EXPECT_EQ(written.rfind("# proto-file: proto/model.proto\n"
                          "# proto-message: microengine.Model\n"
                          "format_version: 1\n",
                          0),
            0u);
  EXPECT_NE(written.find("größer"), std::string::npos);
}

TEST(ConvertModel, InPlace) {
  const TempFolder folder;
  const std::string path = folder.write("m.txtpb", kEveryOp);
  const std::string before = in_words(load(path));
  convert(path, path);
  EXPECT_EQ(in_words(load(path)), before);
}

TEST(ConvertModel, ExternalWeightsKeepItInTheFolder) {
  const TempFolder folder;
  const float one = 1;
  ASSERT_TRUE(
      write_safetensors(folder.path("w.safetensors"), {tensor_of("w0", DType::kF32, {1}, &one)})
          .ok());
  const std::string model = folder.write(
      "m.txtpb", with_weights({R"(dtype: F32 dims: 1 external { file: "w.safetensors" })"}));
  convert(model, folder.path("m.pb"));
  EXPECT_EQ(floats_of(load(folder.path("m.pb")).values.at(0)), std::vector<float>{1});
  convert(model, folder.path("../") +
                     std::filesystem::path(folder.path("")).parent_path().filename().string() +
                     "/n.pb");

  std::filesystem::create_directory(folder.path("sub"));
  const Status status = convert_model(model, folder.path("sub/m.pb"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kInvalid);
  EXPECT_NE(status.error().to_string().find("weight \"w0\" lies beside the model"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder.path("sub/m.pb")));
}

TEST(ConvertModel, AFaultLeavesTheTargetAlone) {
  const TempFolder folder;
  const std::string bad = folder.write("bad.txtpb", "format_version: 1");
  const std::string target = folder.write("m.pb", "old");
  EXPECT_FALSE(convert_model(bad, target).ok());
  EXPECT_EQ(read_bytes(target), "old");
  const std::string good = folder.write("good.txtpb", kEveryOp);
  EXPECT_FALSE(convert_model(good, folder.path("m.bin")).ok());
  EXPECT_FALSE(convert_model(good, folder.path("no/such/folder/m.pb")).ok());
}

// Quadratic work, or recursion along the chain, would not finish in this time.
TEST(LoadModel, ChainOf20000NodesLastFirst) {
  constexpr int kNodes = 20000;
  const TempFolder folder;
  std::string text =
      "format_version: 1 graph { inputs { name: \"v0\" dtype: F32 dims { size: 1 } }\n";
  for (int i = kNodes; i >= 1; --i) {
    const std::string in = "\"v" + std::to_string(i - 1) + "\"";
    const std::string out = "\"v" + std::to_string(i) + "\"";
    text += "nodes { name: " + out + " inputs: [" + in + ", " + in + "] outputs: " + out +
            " add {} }\n";
  }
  text += "outputs { name: \"v20000\" } }";
  const std::string path = folder.write("m.txtpb", text);
  const auto start = std::chrono::steady_clock::now();
  const Graph graph = load(path);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  ASSERT_EQ(graph.nodes.size(), size_t{kNodes});
  EXPECT_EQ(graph.nodes.front().name, "v1");
  EXPECT_EQ(graph.nodes.back().name, "v20000");
  EXPECT_LT(seconds.count(), 20);
}

// The same as a ring: the cycle's message names its first nodes only.
TEST(LoadModel, RingOf20000Nodes) {
  constexpr int kNodes = 20000;
  const TempFolder folder;
  std::string text = "format_version: 1 graph {\n";
  for (int i = 0; i < kNodes; ++i) {
    const std::string in = "\"v" + std::to_string(i) + "\"";
    const std::string out = "\"v" + std::to_string((i + 1) % kNodes) + "\"";
    text +=
        "nodes { name: " + in + " inputs: [" + in + ", " + in + "] outputs: " + out + " add {} }\n";
  }
  const auto graph = load_model(folder.write("m.txtpb", text + "outputs { name: \"v0\" } }"));
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().message,
            "line 2, column 1: found the cycle \"v0\" -> \"v1\" -> \"v2\" -> \"v3\" -> \"v4\" -> "
            "\"v5\" -> \"v6\" -> \"v7\" -> 19992 more -> \"v0\", expected none");
}

}  // namespace
}  // namespace me::testing
