#include "engine/plan/tuning.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/io/file.h"

namespace me {
namespace {

constexpr int64_t kMostBytes = int64_t{64} << 20;
constexpr int kFormat = 1;

struct AttrText {
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(int64_t v) const { return std::to_string(v); }
  std::string operator()(double v) const { return fmt::format("{}", v); }
  std::string operator()(const std::string& v) const { return v; }
  std::string operator()(const std::vector<int64_t>& v) const {
    std::string text;
    for (int64_t number : v) text += std::to_string(number) + ",";
    return text;
  }
  std::string operator()(const std::vector<Dim>& v) const {
    std::string text;
    for (const Dim& dim : v) text += dim.symbol + std::to_string(dim.size) + ",";
    return text;
  }
};

}  // namespace

std::string tuning_key(const Problem& problem, const AttrMap& fields) {
  std::string key(problem.op->name);
  for (const auto& [name, value] : fields)
    key += fmt::format(" {}={}", name, std::visit(AttrText(), value));
  const auto add = [&key](std::string_view what, const TensorDesc& t) {
    key += fmt::format(" {} {} strides {} aligned {}{}", what, to_string(t.type()),
                       to_string(t.strides), std::min<int64_t>(t.alignment_bytes, 256),
                       t.constant ? " constant" : "");
  };
  for (const TensorDesc& t : problem.inputs) add("in", t);
  for (const TensorDesc& t : problem.outputs) add("out", t);
  return key;
}

Status TuningCache::load(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Ok{};
  ME_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMostBytes));
  const auto bad = [&path](const std::string& why) {
    Error error = invalid("found " + why + ", expected a tuning cache; delete it to start anew");
    error.file = path;
    return error;
  };
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("format") != kFormat) return bad("format " + json.at("format").dump());
    for (const auto& [machine, results] : json.at("machines").items()) {
      for (const auto& [key, result] : results.items()) {
        results_[machine][key] = {result.at("kernel").get<std::string>(),
                                  result.at("config").get<std::string>(),
                                  result.at("time_us").get<double>()};
      }
    }
  } catch (const nlohmann::json::exception& e) {
    return bad(e.what());
  }
  return Ok{};
}

Status TuningCache::save(const std::string& path) const {
  nlohmann::json json{{"format", kFormat}, {"machines", nlohmann::json::object()}};
  for (const auto& [machine, results] : results_) {
    for (const auto& [key, result] : results) {
      json["machines"][machine][key] = {
          {"kernel", result.kernel}, {"config", result.config}, {"time_us", result.time_us}};
    }
  }
  const std::string text = json.dump(1) + "\n";
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  return write_file(path, std::span(&part, 1));
}

std::optional<TunedKernel> TuningCache::find(const std::string& key) const {
  const auto machine = results_.find(machine_);
  if (machine == results_.end()) return std::nullopt;
  const auto it = machine->second.find(key);
  if (it == machine->second.end()) return std::nullopt;
  return it->second;
}

void TuningCache::put(const std::string& key, TunedKernel result) {
  results_[machine_][key] = std::move(result);
}

}  // namespace me
