// What the tests of good models share.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "engine/model/loader.h"
#include "tests/engine/temp_folder.h"

namespace me::testing {

// Fails the test where the model is refused.
inline Graph load(const std::string& path) {
  auto graph = load_model(path);
  if (!graph.ok()) {
    ADD_FAILURE() << graph.error().to_string();
    return {};
  }
  return std::move(graph).value();
}

inline std::vector<float> floats_of(const Value& value) {
  std::vector<float> floats(value.data.size() / 4);
  if (!floats.empty()) std::memcpy(floats.data(), value.data.data(), value.data.size());
  return floats;
}

// Weights named w0, w1, … and one output.
inline std::string with_weights(const std::vector<std::string>& weights) {
  std::string text = "format_version: 1 graph { outputs { name: \"w0\" }\n";
  for (size_t i = 0; i < weights.size(); ++i) {
    text += "weights { name: \"w" + std::to_string(i) + "\" " + weights[i] + " }\n";
  }
  return text + "}";
}

inline NamedTensor tensor_of(const std::string& name, DType dtype, const Dims& shape,
                             const void* data) {
  NamedTensor named{name, {}};
  static_cast<TensorDesc&>(named.tensor) = dense(dtype, shape);
  named.tensor.data = const_cast<void*>(data);
  return named;
}

}  // namespace me::testing
