#include "bench/samples.h"

#include <algorithm>
#include <set>

#include "ops/attention/attention.h"
#include "ops/linear/linear.h"

namespace me::bench {
namespace {

constexpr int64_t kProducts = int64_t{1} << 24;  // multiplications of a linear sample
constexpr int64_t kLeastSide = 48;               // rows and columns of it, for odd shapes of tiles
constexpr int64_t kElements = int64_t{1} << 20;  // of a sample of rows
constexpr int64_t kLeastRows = 3;
constexpr int64_t kLongKeys = 32768;  // attention over more keys is checked at fewer places

// Indices start, start + step, ... of an axis.
struct Steps {
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 1;
};

// `wanted` indices or all there are, the last among them.
Steps spread(int64_t extent, int64_t wanted) {
  Steps s;
  s.count = std::min(extent, wanted);
  if (s.count > 1) s.step = (extent - 1) / (s.count - 1);
  if (s.step % 2 == 0) --s.step;
  s.start = extent - 1 - (s.count - 1) * s.step;
  return s;
}

ViewPlacement take(ViewPlacement part, int axis, const Steps& s) {
  part.offset += s.start * part.desc.strides[axis];
  part.desc.strides[axis] *= s.step;
  part.desc.shape[axis] = s.count;
  return part;
}

Sample whole(const Problem& problem) {
  Sample sample;
  for (const TensorDesc& t : problem.inputs) sample.inputs.push_back({t, 0});
  sample.output = {problem.outputs[0], 0};
  return sample;
}

Sample linear_sample(const Problem& problem) {
  const LinearSizes s = linear_sizes(problem);
  const Steps rows = spread(s.m, kLeastSide);
  const Steps columns =
      spread(s.n, std::max(kLeastSide, kProducts / (rows.count * std::max<int64_t>(1, s.k))));
  const bool nk = attrs_as<LinearAttrs>(*problem.attrs).weight_layout == WeightLayout::kNK;
  Sample sample = whole(problem);
  sample.inputs[0] = take(sample.inputs[0], 0, rows);
  sample.inputs[1] = take(sample.inputs[1], nk ? 0 : 1, columns);
  if (has_bias(problem)) sample.inputs[2] = take(sample.inputs[2], 0, columns);
  sample.output = take(take(sample.output, 0, rows), 1, columns);
  return sample;
}

// A query alone with the keys that it sees, all of them: attention without a mask.
Sample attention_sample(const Problem& problem, int64_t batch, int64_t head, int64_t query) {
  const AttentionSizes s = attention_sizes(problem);
  auto attrs = std::make_shared<AttentionAttrs>(attrs_as<AttentionAttrs>(*problem.attrs));
  attrs->causal = false;
  const auto at = [&](ViewPlacement part, int64_t h, const Steps& rows) {
    return take(take(take(part, 0, {batch}), 1, {h}), 2, rows);
  };
  const Steps keys{0, 1, s.mask.visible_keys(query)};
  Sample sample = whole(problem);
  sample.attrs = attrs;
  sample.inputs[0] = at(sample.inputs[0], head, {query});
  sample.inputs[1] = at(sample.inputs[1], head / s.group, keys);
  sample.inputs[2] = at(sample.inputs[2], head / s.group, keys);
  sample.output = at(sample.output, head, {query});
  return sample;
}

std::vector<Sample> attention_samples(const Problem& problem) {
  const AttentionSizes s = attention_sizes(problem);
  const bool is_long = s.kv_len > kLongKeys;
  const Steps heads = spread(s.batch * s.heads, is_long ? 2 : 3);
  std::set<int64_t> queries{0, s.q_len - 1};
  if (!is_long) queries.insert({s.q_len / 5, s.q_len / 3 + 1, s.q_len / 2, s.q_len * 5 / 7});
  std::vector<Sample> samples;
  for (int64_t i = 0; i < heads.count; ++i) {
    const int64_t at = heads.start + i * heads.step;
    for (int64_t query : queries) {
      if (query >= s.q_len) continue;
      samples.push_back(attention_sample(problem, at / s.heads, at % s.heads, query));
    }
  }
  return samples;
}

// For ops whose inputs all have the shape of the output and whose rows stand alone.
Sample rows_sample(const Problem& problem) {
  const Dims& shape = problem.outputs[0].shape;
  const Steps rows =
      spread(shape[0], std::max(kLeastRows, kElements / std::max<int64_t>(1, shape[1])));
  Sample sample = whole(problem);
  for (ViewPlacement& input : sample.inputs) input = take(input, 0, rows);
  sample.output = take(sample.output, 0, rows);
  return sample;
}

}  // namespace

std::vector<Sample> samples_of(const Problem& problem) {
  const std::string_view op = problem.op->name;
  if (op == "attention") return attention_samples(problem);
  if (problem.outputs[0].shape.rank() == 2) {
    if (op == "linear") return {linear_sample(problem)};
    if (op == "softmax" || op == "softmax_grad" || op == "add") return {rows_sample(problem)};
  }
  return {whole(problem)};
}

}  // namespace me::bench
