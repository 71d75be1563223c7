// Attention in FP64 with materialised scores, and how far a streaming kernel may be from it.
//
// Write s_j for the scores of a row's n visible keys, m for their maximum, p_j = exp(s_j - m),
// l = Σ p_j, w_j = p_j / l and o = Σ w_j·v_j. With u = 2^-24 a kernel errs in these places:
//   1. A score: its dot product of D terms, the scaling (of q or of the result) and the subtraction
//      of the maximum, taken one time or in steps as the maximum grows: e_j in all. So a weight p_j
//      may grow by the factor exp(e_j), and by the error of exp itself: by `lift_j`. What every
//      weight shares cancels, and the output moves by at most Σ lift_j·|v_j - o| / (l - Σ lift_j).
//      Weights of any size leave it inside the range of the v_j, which caps this term.
//   2. Sums over keys, in the numerator and in l: each step adds, may rescale (two roundings) and
//      the rescaling's exp errs by a few u: six roundings a key.
//   3. For 16-bit types a kernel may round p_j to the input type, as tensor cores need it: relative
//      error by that type's unit roundoff, and absolute error near zero.
//   4. p_j below 2^-126 may be lost.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/attention.h"

namespace me {
namespace {

constexpr double kU = 0x1p-24;
constexpr double kExpError = 8 * kU;  // relative error of a kernel's exp and of the factors on it
constexpr double kRoundingsPerKey = 6;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Scores {
  std::vector<double> value;   // [visible keys]
  std::vector<double> error;   // e_j without the maximum's part
  std::vector<double> weight;  // p_j
  std::vector<double> lift;
  double sum = 0;       // l
  double lift_sum = 0;  // Σ lift_j
};

// The scores and weights of one query, q [D], for the first n keys of k [kv_len, D].
void score(const double* q, const double* k, int64_t n, int64_t head_dim, double scale, Scores& s) {
  const auto size = static_cast<size_t>(n);
  s.value.assign(size, 0);
  s.error.assign(size, 0);
  s.weight.assign(size, 0);
  s.lift.assign(size, 0);
  const double dot_error = accumulation_error(static_cast<double>(head_dim)) + 4 * kU;
  double max = -kInfinity;
  for (size_t j = 0; j < size; ++j) {
    const double* key = k + static_cast<int64_t>(j) * head_dim;
    double dot = 0;
    double magnitude = 0;
    double key_magnitude = 0;
    for (int64_t d = 0; d < head_dim; ++d) {
      dot += q[d] * key[d];
      magnitude += std::abs(q[d] * key[d]);
      key_magnitude += std::abs(key[d]);
    }
    s.value[j] = scale * dot;
    // The second part is what subnormal products, or subnormal scaled queries, lose.
    s.error[j] = dot_error * std::abs(scale) * magnitude +
                 0x1p-149 * (key_magnitude + std::abs(scale) * static_cast<double>(head_dim) + 1);
    if (!(s.value[j] <= max)) max = s.value[j];  // NaN stays only if last; p_j is NaN in any case
  }
  s.sum = 0;
  s.lift_sum = 0;
  for (size_t j = 0; j < size; ++j) {
    s.weight[j] = std::exp(s.value[j] - max);
    s.sum += s.weight[j];
    if (s.value[j] == -kInfinity) continue;  // exactly nothing, in any precision
    const double e = s.error[j] + 2 * kU * (std::abs(s.value[j]) + std::abs(max));
    s.lift[j] = std::exp(s.value[j] - max + e) * (1 + kExpError) - s.weight[j];
    s.lift_sum += s.lift[j];
  }
}

}  // namespace

std::vector<OracleOutput> attention_oracle(const Problem& problem,
                                           std::span<const F64Tensor> inputs) {
  const AttentionSizes sizes = attention_sizes(problem);
  const DType dtype = problem.inputs[0].dtype;
  const bool rounds_weights = dtype != DType::kF32;
  const double weight_roundoff = rounds_weights ? unit_roundoff(dtype) : 0;
  const double weight_loss = 0x1p-126 + (rounds_weights ? subnormal_roundoff(dtype) : 0);
  const int64_t value_dim = sizes.value_dim;

  OracleOutput out;
  out.value.shape = {sizes.batch, sizes.heads, sizes.q_len, value_dim};
  out.value.data.reserve(static_cast<size_t>(me::count(out.value.shape)));
  Scores s;
  for (int64_t row = 0; row < sizes.batch * sizes.heads * sizes.q_len; ++row) {
    const int64_t query = row % sizes.q_len;
    const int64_t head = row / sizes.q_len % sizes.heads;
    const int64_t batch = row / sizes.q_len / sizes.heads;
    const int64_t first_key =
        (batch * sizes.kv_heads + head / sizes.group) * sizes.kv_len;  // row of K and V
    const int64_t n = sizes.mask.visible_keys(query);
    if (n == 0) {
      out.value.data.insert(out.value.data.end(), static_cast<size_t>(value_dim), 0.0);
      out.bound.insert(out.bound.end(), static_cast<size_t>(value_dim), 0.0);
      continue;
    }
    score(inputs[0].data.data() + row * sizes.head_dim,
          inputs[1].data.data() + first_key * sizes.head_dim, n, sizes.head_dim, sizes.scale, s);
    const double* v = inputs[2].data.data() + first_key * value_dim;  // [kv_len, value_dim]
    const double sums = 2 * accumulation_error(kRoundingsPerKey * static_cast<double>(n)) + 4 * kU;
    for (int64_t c = 0; c < value_dim; ++c) {
      double o = 0;
      double magnitude = 0;  // Σ p_j·|v_j|
      double total = 0;      // Σ |v_j|
      double low = kInfinity;
      double high = -kInfinity;
      for (int64_t j = 0; j < n; ++j) {
        const double x = v[j * value_dim + c];
        o += s.weight[static_cast<size_t>(j)] * x;
        magnitude += s.weight[static_cast<size_t>(j)] * std::abs(x);
        total += std::abs(x);
        low = std::min(low, x);
        high = std::max(high, x);
      }
      o /= s.sum;
      out.value.data.push_back(o);
      if (!std::isfinite(o)) {
        out.bound.push_back(0);
        continue;
      }
      double moved = high - low;
      if (s.lift_sum < s.sum / 2) {
        double shift = 0;
        for (int64_t j = 0; j < n; ++j) {
          shift += s.lift[static_cast<size_t>(j)] * std::abs(v[j * value_dim + c] - o);
        }
        moved = std::min(moved, shift / (s.sum - s.lift_sum));
      }
      out.bound.push_back(moved + (sums + weight_roundoff) * magnitude / s.sum +
                          weight_loss * total / s.sum);
    }
  }
  return {out};
}

}  // namespace me
