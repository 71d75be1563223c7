#include "engine/cli/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "engine/io/safetensors.h"

namespace me::cli {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

bool ends_with(const std::string& text, std::string_view ending) {
  return std::string_view(text).ends_with(ending);
}

Error input_error(const std::string& file, std::string message) {
  Error error = invalid(std::move(message));
  error.file = file;
  error.field = "--input";
  return error;
}

bool is_input(const Graph& graph, std::string_view name) {
  const int value = graph.find_value(name);
  return value >= 0 && graph.values[at(value)].kind == ValueKind::kInput;
}

InputArray from_tensor(const SafetensorsFile::Tensor& tensor, const std::string& file) {
  return {{tensor.type, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()}}, file};
}

// The number of the float type that `dtype` is stored as in an Array.
ArrayType array_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ArrayType::kF32;
    case DType::kF16:
      return ArrayType::kF16;
    case DType::kBF16:
      return ArrayType::kBF16;
  }
  return ArrayType::kF32;
}

bool is_floating(ArrayType type) {
  return type == ArrayType::kF32 || type == ArrayType::kF16 || type == ArrayType::kBF16 ||
         type == ArrayType::kF64;
}

}  // namespace

void add_input_options(CLI::App& command, std::vector<std::string>& inputs, uint64_t& seed) {
  add_repeatable(command, "--input", inputs,
                 "An input: NAME=FILE.npy, NAME=FILE.safetensors (its tensor NAME), or\n"
                 "FILE.safetensors (every input that it holds)")
      ->type_name("[NAME=]FILE");
  command.add_option("--seed", seed, "Seed of random inputs")->capture_default_str();
}

Result<std::map<std::string, InputArray>> read_inputs(const Graph& graph,
                                                      const std::vector<std::string>& args) {
  std::map<std::string, InputArray> inputs;
  const auto add = [&](const std::string& name, InputArray array) -> Status {
    if (!is_input(graph, name)) {
      std::string known;
      for (int v : graph.inputs) {
        known += (known.empty() ? "" : ", ") + in_quotes(graph.values[at(v)].name);
      }
      return input_error(graph.file, fmt::format("found {}, expected an input of the model: {}",
                                                 in_quotes(name), known));
    }
    const std::string source = array.source;
    if (!inputs.emplace(name, std::move(array)).second) {
      return input_error(source,
                         fmt::format("a second value for {}, expected one", in_quotes(name)));
    }
    return Ok{};
  };
  for (const std::string& arg : args) {
    if (arg.find('=') == std::string::npos && ends_with(arg, ".safetensors")) {
      ME_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::open(arg));
      bool used = false;
      for (const auto& [name, tensor] : file->tensors()) {
        if (!is_input(graph, name)) continue;
        ME_RETURN_IF_ERROR(add(name, from_tensor(tensor, arg)));
        used = true;
      }
      if (!used) return input_error(arg, "holds no input of the model");
      continue;
    }
    ME_ASSIGN_OR_RETURN(const NameValue pair, split_pair(arg, "--input"));
    if (ends_with(pair.value, ".npy")) {
      ME_ASSIGN_OR_RETURN(Array array, read_npy(pair.value));
      ME_RETURN_IF_ERROR(add(pair.name, {std::move(array), pair.value}));
    } else if (ends_with(pair.value, ".safetensors")) {
      ME_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::open(pair.value));
      const auto* tensor = file->find(pair.name);
      if (tensor == nullptr) {
        return input_error(pair.value, fmt::format("holds no tensor {}", in_quotes(pair.name)));
      }
      ME_RETURN_IF_ERROR(add(pair.name, from_tensor(*tensor, pair.value)));
    } else {
      return input_error(pair.value, "expected a name ending in .npy or .safetensors");
    }
  }
  return inputs;
}

Status copy_array(const Array& array, const TensorView& buffer, std::string& notice) {
  if (array.type == array_type(buffer.dtype)) {
    if (!array.bytes.empty()) std::memcpy(buffer.data, array.bytes.data(), array.bytes.size());
    return Ok{};
  }
  if (!is_floating(array.type)) {
    return invalid(
        fmt::format("found elements of type {}, expected {} or another floating-point type",
                    name_of(array.type), name_of(buffer.dtype)));
  }
  for (int64_t i = 0; i < buffer.count(); ++i)
    store_f64(buffer.data, i, buffer.dtype, array.get(i));
  notice = fmt::format("{} rounded to {}", name_of(array.type), name_of(buffer.dtype));
  return Ok{};
}

void fill_random(const TensorView& buffer, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < buffer.count(); ++i)
    store_f32(buffer.data, i, buffer.dtype, normal(random));
}

Result<std::vector<std::string>> fill_inputs(const Graph& graph,
                                             const std::vector<TensorView>& buffers,
                                             const std::map<std::string, InputArray>& arrays,
                                             uint64_t seed) {
  std::vector<std::string> sources;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const std::string& name = graph.values[at(graph.inputs[i])].name;
    const auto found = arrays.find(name);
    if (found == arrays.end()) {
      fill_random(buffers[i], seed + i);
      sources.push_back(fmt::format("random, seed {}", seed + i));
      notify(fmt::format(
          "input {} is random: normal, seed {}; give --input NAME=FILE.npy for real data",
          in_quotes(name), seed + i));
      continue;
    }
    std::string rounding;
    const Status copied = copy_array(found->second.array, buffers[i], rounding);
    if (!copied.ok()) {
      Error error = copied.error();
      error.file = found->second.source;
      error.field = "input " + in_quotes(name);
      return error;
    }
    if (!rounding.empty()) notify(fmt::format("input {}: {}", in_quotes(name), rounding));
    sources.push_back(found->second.source);
  }
  return sources;
}

std::map<std::string, Dims> shapes_of(const std::map<std::string, InputArray>& arrays) {
  std::map<std::string, Dims> shapes;
  for (const auto& [name, input] : arrays) shapes[name] = input.array.shape;
  return shapes;
}

Status check_output_path(const std::string& path) {
  if (ends_with(path, ".npy") || ends_with(path, ".safetensors")) return Ok{};
  Error error = invalid("expected a name ending in .npy or .safetensors");
  error.file = path;
  error.field = "--output";
  return error;
}

Status write_tensor(const std::string& path, const std::string& name, const TensorView& tensor) {
  ME_RETURN_IF_ERROR(check_output_path(path));
  if (ends_with(path, ".npy")) return write_npy(path, tensor);
  return write_safetensors(path, {{name, tensor}});
}

TensorSummary summarize(const TensorView& tensor) {
  TensorSummary s;
  s.count = tensor.count();
  int64_t finite = 0;
  double sum = 0;
  for (int64_t i = 0; i < s.count; ++i) {
    const double x = load_f32(tensor.data, offset_of(tensor, i), tensor.dtype);
    if (std::isnan(x)) {
      ++s.nan;
    } else if (std::isinf(x)) {
      ++s.infinite;
    } else {
      s.min = finite == 0 ? x : std::min(s.min, x);
      s.max = finite == 0 ? x : std::max(s.max, x);
      sum += x;
      ++finite;
    }
  }
  if (finite > 0) s.mean = sum / static_cast<double>(finite);
  return s;
}

int64_t row_count(const TensorDesc& tensor) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < tensor.shape.rank(); ++i) rows *= tensor.shape[i];
  return rows;
}

int64_t argmax_of_row(const TensorView& tensor, int64_t row) {
  const int64_t length = tensor.shape.back();
  int64_t best = -1;
  float largest = 0;
  for (int64_t i = 0; i < length; ++i) {
    const float x = load_f32(tensor.data, offset_of(tensor, row * length + i), tensor.dtype);
    if (std::isnan(x)) return -1;
    if (best < 0 || x > largest) {
      best = i;
      largest = x;
    }
  }
  return best;
}

}  // namespace me::cli
