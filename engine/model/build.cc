#include "engine/model/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "engine/model/attrs.h"
#include "engine/model/order.h"
#include "engine/model/weights.h"
#include "ops/registry.h"

namespace me {
namespace {

namespace pb = microengine;

constexpr uint32_t kFormatVersion = 1;
constexpr int kMaxNodes = 100000;
constexpr int kMaxWeights = 100000;
constexpr size_t kMaxNameBytes = 256;
constexpr std::string_view kExpectedDType = "expected F32, F16 or BF16";

size_t at(int index) { return static_cast<size_t>(index); }

std::string element(std::string_view field, int index) {
  return fmt::format("graph.{}[{}]", field, index);
}

Status check_limit(std::string_view field, int found, int limit) {
  if (found <= limit) return Ok{};
  return fault(fmt::format("graph.{}", field),
               fmt::format("found {}, expected at most {}", found, limit));
}

bool has_control_characters(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    if (c < 0x20 || c == 0x7F) return true;
    // U+0080 to U+009F, which steer terminals as the ones below U+0020 do.
    if (c == 0xC2 && i + 1 < text.size() && static_cast<uint8_t>(text[i + 1]) < 0xA0) return true;
  }
  return false;
}

Status check_name(const std::string& name, const std::string& path) {
  if (name.empty()) return fault(path, "found an empty name, expected 1 to 256 bytes");
  if (name.size() > kMaxNameBytes) {
    return fault(path, fmt::format("found a name of {} bytes, {}, expected at most {}", name.size(),
                                   in_quotes(name), kMaxNameBytes));
  }
  if (has_control_characters(name)) {
    return fault(
        path, fmt::format("found {}, expected a name without control characters", in_quotes(name)));
  }
  return Ok{};
}

Status check_rank(int rank, const std::string& path) {
  if (rank >= 1 && rank <= kMaxRank) return Ok{};
  return fault(path + ".dims", fmt::format("found {} dims, expected 1 to {}", rank, kMaxRank));
}

Status check_extent(int64_t extent, const std::string& path) {
  if (extent >= 0) return Ok{};
  return fault(path, fmt::format("found {}, expected 0 or more", extent));
}

std::string arity_text(const OpDef& op) {
  std::string text = std::to_string(op.min_inputs);
  if (op.max_inputs != op.min_inputs) text += fmt::format(" to {}", op.max_inputs);
  return op.input_names.empty() ? text : fmt::format("{} ({})", text, op.input_names);
}

class Builder {
 public:
  Builder(const pb::Model& model, const std::string& path)
      : graph_(model.graph()), storage_(std::make_shared<WeightStorage>(path)) {
    out_.file = path;
    out_.name = graph_.name();
    out_.doc = model.doc();
  }

  Result<Graph> build() {
    ME_RETURN_IF_ERROR(check_limit("nodes", graph_.nodes_size(), kMaxNodes));
    ME_RETURN_IF_ERROR(check_limit("weights", graph_.weights_size(), kMaxWeights));
    for (int i = 0; i < graph_.inputs_size(); ++i) ME_RETURN_IF_ERROR(add_input(i));
    for (int i = 0; i < graph_.weights_size(); ++i) ME_RETURN_IF_ERROR(add_weight(i));
    storage_->close_folder();
    for (int i = 0; i < graph_.nodes_size(); ++i) ME_RETURN_IF_ERROR(add_node(i));
    for (int i = 0; i < graph_.nodes_size(); ++i) ME_RETURN_IF_ERROR(join_inputs(i));
    ME_RETURN_IF_ERROR(add_outputs());
    for (int i = 0; i < graph_.values_size(); ++i) {
      const std::string path = element("values", i);
      ME_ASSIGN_OR_RETURN(const int value, find(graph_.values(i).name(), path + ".name"));
      ME_RETURN_IF_ERROR(add_claim(graph_.values(i), value, path));
    }
    ME_RETURN_IF_ERROR(order_nodes());

    out_.by_name.resize(out_.values.size());
    std::iota(out_.by_name.begin(), out_.by_name.end(), 0);
    std::sort(out_.by_name.begin(), out_.by_name.end(),
              [&](int a, int b) { return out_.values[at(a)].name < out_.values[at(b)].name; });
    out_.symbols.assign(symbols_.begin(), symbols_.end());
    out_.storage = std::move(storage_);

    ME_ASSIGN_OR_RETURN(const std::vector<TensorType> types, infer_types(out_, {}));
    for (size_t v = 0; v < out_.values.size(); ++v) out_.values[v].dtype = types[v].dtype;
    return std::move(out_);
  }

 private:
  // Defines a value; `path` is what defines it.
  Result<int> define(const std::string& name, ValueKind kind, const std::string& path,
                     const std::string& name_path) {
    ME_RETURN_IF_ERROR(check_name(name, name_path));
    const auto index = static_cast<int>(out_.values.size());
    const auto [it, fresh] = defined_.emplace(name, Definition{index, path});
    if (!fresh) {
      return fault(name_path,
                   fmt::format("found {} again, which {} defines, expected one definition",
                               in_quotes(name), it->second.path));
    }
    Value value;
    value.name = name;
    value.kind = kind;
    out_.values.push_back(std::move(value));
    return index;
  }

  Result<int> find(const std::string& name, const std::string& path) const {
    const auto it = defined_.find(name);
    if (it != defined_.end()) return it->second.value;
    return fault(path, fmt::format("found {}, expected the name of an input, of a weight or of a "
                                   "node's output",
                                   in_quotes(name)));
  }

  // The dims of a Value message, which may be none.
  Result<std::vector<Dim>> parse_dims(const pb::Value& value, const std::string& path) {
    std::vector<Dim> dims;
    for (int i = 0; i < value.dims_size(); ++i) {
      const std::string dim_path = fmt::format("{}.dims[{}]", path, i);
      ME_ASSIGN_OR_RETURN(Dim dim, parse_dim(value.dims(i), dim_path));
      if (dim.symbol.empty()) {
        ME_RETURN_IF_ERROR(check_extent(dim.size, dim_path));
      } else {
        symbols_.insert(dim.symbol);
      }
      dims.push_back(std::move(dim));
    }
    return dims;
  }

  Status add_input(int i) {
    const pb::Value& input = graph_.inputs(i);
    const std::string path = element("inputs", i);
    ME_ASSIGN_OR_RETURN(const int index,
                        define(input.name(), ValueKind::kInput, path, path + ".name"));
    const std::optional<DType> dtype = dtype_of(input.dtype());
    if (!dtype) return fault(path + ".dtype", fmt::format("found none, {}", kExpectedDType));
    ME_RETURN_IF_ERROR(check_rank(input.dims_size(), path));
    ME_ASSIGN_OR_RETURN(out_.values[at(index)].dims, parse_dims(input, path));
    out_.values[at(index)].dtype = *dtype;
    out_.inputs.push_back(index);
    return Ok{};
  }

  Status add_weight(int i) {
    const pb::Weight& weight = graph_.weights(i);
    const std::string path = element("weights", i);
    ME_ASSIGN_OR_RETURN(const int index,
                        define(weight.name(), ValueKind::kWeight, path, path + ".name"));
    const std::optional<DType> dtype = dtype_of(weight.dtype());
    if (!dtype) return fault(path + ".dtype", fmt::format("found none, {}", kExpectedDType));
    ME_RETURN_IF_ERROR(check_rank(weight.dims_size(), path));
    TensorType type{*dtype, {}};
    Value& value = out_.values[at(index)];
    for (int d = 0; d < weight.dims_size(); ++d) {
      ME_RETURN_IF_ERROR(check_extent(weight.dims(d), fmt::format("{}.dims[{}]", path, d)));
      type.shape.push_back(weight.dims(d));
      value.dims.push_back({weight.dims(d), {}});
    }
    if (!checked_count(type.shape)) {
      return fault(path + ".dims",
                   fmt::format("found {}, expected extents that multiply to less than 2^60",
                               to_string(type.shape)));
    }
    value.dtype = *dtype;
    ME_ASSIGN_OR_RETURN(value.data, storage_->read(weight, type, path));
    return Ok{};
  }

  Status add_node(int i) {
    const pb::Node& message = graph_.nodes(i);
    const std::string path = element("nodes", i);
    ME_RETURN_IF_ERROR(check_name(message.name(), path + ".name"));
    if (!node_names_.insert(message.name()).second) {
      return fault(path + ".name", fmt::format("found {} again, expected a name that no other node "
                                               "has",
                                               in_quotes(message.name())));
    }
    Node node;
    node.name = message.name();
    const auto blame = [&](Error error) {
      error.node = message.name();
      return error;
    };

    const auto* reflection = message.GetReflection();
    const auto* field =
        reflection->GetOneofFieldDescriptor(message, pb::Node::descriptor()->FindOneofByName("op"));
    if (field == nullptr) return fault(path, "found no op, expected one", message.name());
    const std::string op_name(field->name());
    node.op = find_op(op_name);
    if (node.op == nullptr) {
      return fault(path + "." + op_name, "found an op that this engine lacks", message.name());
    }
    auto fields = parse_attrs(reflection->GetMessage(message, field), op_name);
    if (!fields.ok()) return blame(std::move(fields.error()));
    node.fields = std::move(fields).value();
    for (const auto& [name, value] : node.fields) {
      if (const auto* dims = std::get_if<std::vector<Dim>>(&value)) {
        for (const Dim& dim : *dims) {
          if (!dim.symbol.empty()) symbols_.insert(dim.symbol);
        }
      }
    }
    auto attrs = node.op->parse(node.fields);
    if (!attrs.ok()) return blame(std::move(attrs.error()));
    node.attrs = std::move(attrs).value();

    const int arity = message.inputs_size();
    if (arity < node.op->min_inputs || arity > node.op->max_inputs) {
      return fault(path + ".inputs",
                   fmt::format("found {} inputs, expected {}", arity, arity_text(*node.op)),
                   message.name());
    }
    for (int j = 0; j < message.outputs_size(); ++j) {
      auto index = define(message.outputs(j), ValueKind::kIntermediate, path,
                          fmt::format("{}.outputs[{}]", path, j));
      if (!index.ok()) return blame(std::move(index.error()));
      out_.values.back().producer = i;
      node.outputs.push_back(index.value());
    }
    out_.nodes.push_back(std::move(node));
    return Ok{};
  }

  Status join_inputs(int i) {
    const pb::Node& message = graph_.nodes(i);
    for (int j = 0; j < message.inputs_size(); ++j) {
      auto value = find(message.inputs(j), fmt::format("graph.nodes[{}].inputs[{}]", i, j));
      if (!value.ok()) {
        value.error().node = message.name();
        return std::move(value.error());
      }
      out_.nodes[at(i)].inputs.push_back(value.value());
    }
    return Ok{};
  }

  Status add_outputs() {
    if (graph_.outputs().empty())
      return fault("graph.outputs", "found none, expected at least one");
    std::vector<bool> taken(out_.values.size(), false);
    for (int i = 0; i < graph_.outputs_size(); ++i) {
      const std::string path = element("outputs", i);
      const std::string& name = graph_.outputs(i).name();
      ME_ASSIGN_OR_RETURN(const int value, find(name, path + ".name"));
      if (taken[at(value)]) {
        return fault(path + ".name",
                     fmt::format("found {} again, expected each output once", in_quotes(name)));
      }
      taken[at(value)] = true;
      out_.outputs.push_back(value);
      ME_RETURN_IF_ERROR(add_claim(graph_.outputs(i), value, path));
    }
    return Ok{};
  }

  Status add_claim(const pb::Value& message, int value, const std::string& path) {
    TypeClaim claim{value, dtype_of(message.dtype()), {}, path};
    if (message.dims_size() > 0) ME_RETURN_IF_ERROR(check_rank(message.dims_size(), path));
    ME_ASSIGN_OR_RETURN(claim.dims, parse_dims(message, path));
    if (claim.dtype || !claim.dims.empty()) out_.claims.push_back(std::move(claim));
    return Ok{};
  }

  Status order_nodes() {
    ME_ASSIGN_OR_RETURN(const std::vector<int> order, topological_order(out_.nodes, out_.values));
    std::vector<Node> ordered;
    ordered.reserve(order.size());
    std::vector<int> position(order.size());
    for (const int node : order) {
      position[at(node)] = static_cast<int>(ordered.size());
      ordered.push_back(std::move(out_.nodes[at(node)]));
    }
    out_.nodes = std::move(ordered);
    for (Value& value : out_.values) {
      if (value.producer >= 0) value.producer = position[at(value.producer)];
    }
    return Ok{};
  }

  struct Definition {
    int value;
    std::string path;
  };

  const pb::Graph& graph_;
  std::shared_ptr<WeightStorage> storage_;
  Graph out_;
  // Trees, not hash tables: the names are chosen by whoever wrote the file, and could all collide.
  std::map<std::string_view, Definition> defined_;  // keys live in graph_
  std::set<std::string_view> node_names_;
  std::set<std::string, std::less<>> symbols_;
};

}  // namespace

Result<Graph> build_graph(const pb::Model& model, const std::string& path) {
  if (model.format_version() == 0) {
    return fault("format_version", fmt::format("missing, expected {}", kFormatVersion));
  }
  if (model.format_version() > kFormatVersion) {
    return fault("format_version",
                 fmt::format("found {}, expected {}: this engine is older than the model",
                             model.format_version(), kFormatVersion));
  }
  if (!model.has_graph()) return fault("graph", "missing, expected a graph");
  return Builder(model, path).build();
}

}  // namespace me
