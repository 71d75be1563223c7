#include "engine/plan/bind.h"

#include <fmt/format.h>

#include <algorithm>

namespace me {
namespace {

Error fault(const Graph& graph, std::string_view value, std::string message) {
  Error error = invalid(std::move(message));
  error.file = graph.file;
  error.field = "input " + in_quotes(value);
  return error;
}

}  // namespace

std::string to_string(const std::vector<Dim>& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) out += ", ";
    out += dims[i].symbol.empty() ? std::to_string(dims[i].size) : dims[i].symbol;
  }
  return out + "]";
}

Result<Symbols> bind_symbols(const Graph& graph, const Symbols& given,
                             const std::map<std::string, Dims>& input_shapes) {
  Symbols symbols;
  std::map<std::string, std::string, std::less<>> source;  // who gave a symbol its value
  for (const auto& [name, size] : given) {
    if (!std::binary_search(graph.symbols.begin(), graph.symbols.end(), name)) {
      std::string known = graph.symbols.empty() ? "none" : "";
      for (const std::string& s : graph.symbols) known += (known.empty() ? "" : ", ") + s;
      Error error = invalid(
          fmt::format("found {}, expected a symbol of the model ({})", in_quotes(name), known));
      error.file = graph.file;
      error.field = "--dim";
      return error;
    }
    symbols[name] = size;
    source[name] = "--dim";
  }
  for (const auto& input : input_shapes) {
    const std::string& name = input.first;
    const Dims& shape = input.second;
    const int index = graph.find_value(name);
    if (index < 0 || graph.values[static_cast<size_t>(index)].kind != ValueKind::kInput) {
      std::string known;
      for (int i : graph.inputs) {
        known += (known.empty() ? "" : ", ") + in_quotes(graph.values[static_cast<size_t>(i)].name);
      }
      return fault(graph, name, fmt::format("the model has no such input; it has {}", known));
    }
    const Value& value = graph.values[static_cast<size_t>(index)];
    const auto mismatch = [&](std::string_view why) {
      return fault(graph, name,
                   fmt::format("found shape {}, expected {}{}", to_string(shape),
                               to_string(value.dims), why));
    };
    if (shape.rank() != static_cast<int>(value.dims.size())) return mismatch("");
    for (int i = 0; i < shape.rank(); ++i) {
      const Dim& dim = value.dims[static_cast<size_t>(i)];
      if (dim.symbol.empty()) {
        if (dim.size != shape[i]) return mismatch("");
        continue;
      }
      const auto [it, fresh] = symbols.emplace(dim.symbol, shape[i]);
      if (!fresh && it->second != shape[i]) {
        return mismatch(
            fmt::format(" with {} = {} from {}", dim.symbol, it->second, source[dim.symbol]));
      }
      if (fresh) source[dim.symbol] = "input " + in_quotes(name);
    }
  }
  for (const std::string& symbol : graph.symbols) {
    if (symbols.find(symbol) == symbols.end()) {
      Error error = invalid(
          fmt::format("symbol {} has no value: give --dim {}=N or an input whose shape has it",
                      symbol, symbol));
      error.file = graph.file;
      return error;
    }
  }
  return symbols;
}

}  // namespace me
