#include "kernels/attention_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>

#include "base/float16.h"

namespace reprise::kernels {
namespace {

constexpr double kFloat = 0x1p-24, kBf16 = 0x1p-8, kExp = 5e-6;
// Weights below 2^-126 vanish; the largest is at least 2^-60.
constexpr double kUnderflow = 0x1p-66;
constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr size_t kHeads = 2, kHead = 1;  // the other head's tiles hold other numbers

void make_rows(AttentionCase& problem, std::mt19937& random) {
  const CaseOptions& options = problem.options;
  std::normal_distribution<float> normal(0.0f, options.amplitude);
  problem.q.resize(options.rows * options.head_dim);
  for (float& x : problem.q) x = to_float(to_bf16(normal(random)));
  const size_t positions = (options.rows + options.heads_per_row - 1) / options.heads_per_row;
  for (size_t row = 0; row < options.rows; ++row) {
    const auto end = static_cast<int32_t>(options.keys) -
                     static_cast<int32_t>(positions - 1 - row / options.heads_per_row);
    problem.row_end.push_back(std::max(end, 0));
    problem.row_begin.push_back(options.window > 0 ? std::max(end - options.window, 0) : 0);
  }
}

void make_biases(AttentionCase& problem, size_t pages) {
  std::mt19937 random(problem.options.seed + 1000);
  std::normal_distribution<float> normal(0.0f, problem.options.bias);
  problem.biases.resize(pages * kPageTokens);
  for (float& x : problem.biases) x = random() % 8 == 0 ? kHidden : normal(random);
}

void make_pages(AttentionCase& problem, std::mt19937& random) {
  const CaseOptions& options = problem.options;
  std::normal_distribution<float> normal(0.0f, options.amplitude), unit(0.0f, 1.0f);
  std::uniform_int_distribution<int> dice(0, 5);
  std::uniform_int_distribution<uint32_t> mask(0, kAllSlots);
  const size_t count = (options.keys + kPageTokens - 1) / kPageTokens;
  const size_t width = kHeads * options.head_dim, angles = kPageTokens * options.rope_pairs * 2;
  problem.memory.resize(count * problem.layout.page_bytes());
  problem.cos_sin.resize(count * angles);
  if (options.bias > 0.0f) make_biases(problem, count);
  std::vector<float> k(width), v(width);
  for (size_t page = 0; page < count; ++page) {
    PageSpan span;
    std::byte* at = &problem.memory[page * problem.layout.page_bytes()];
    span.k = at + problem.layout.k_offset(kHead);
    span.v = at + problem.layout.v_offset(kHead);
    span.index = static_cast<int32_t>(page * kPageTokens);
    if (options.holes && dice(random) < 3) span.slots = static_cast<uint16_t>(mask(random));
    if (options.holes && dice(random) == 0) span.slots = 0;
    if (options.bias > 0.0f && page % 2 == 0) span.bias = &problem.biases[page * kPageTokens];
    for (size_t slot = 0; slot < kPageTokens; ++slot) {
      const bool read = (span.slots >> slot & 1) != 0 && page * kPageTokens + slot < options.keys;
      const float garbage =
          (slot % 2 == 0 ? 1.0f : -1.0f) * (options.type == KvType::kF16 ? 6e4f : 3e38f);
      for (float& x : k) x = read ? normal(random) : garbage;
      for (float& x : v) x = read ? unit(random) : garbage;
      store_token(problem.layout, at, slot, k.data(), v.data());
      for (size_t pair = 0; pair < options.rope_pairs; ++pair) {
        float* angle = &problem.cos_sin[page * angles + (slot * options.rope_pairs + pair) * 2];
        const float phase =
            static_cast<float>(page * kPageTokens + slot) / static_cast<float>(1 + 3 * pair);
        angle[0] = std::cos(phase);
        angle[1] = std::sin(phase);
      }
    }
    if (options.rope_pairs > 0) span.cos_sin = &problem.cos_sin[page * angles];
    if (!options.holes || dice(random) != 0) problem.pages.push_back(span);
  }
}

// Logits of one row, their error bounds and values, over the keys it sees.
struct RowKeys {
  std::vector<double> logit, error;
  std::vector<std::vector<float>> value;
  std::vector<int32_t> page;  // where they lie
};

// With AVX-512 decode over q8_0 rounds weights times the scales of values to steps of a page's
// largest: the error of every dim of a block of 32.
std::vector<double> weight_steps(const RowKeys& keys, std::span<const double> weights,
                                 size_t head_dim) {
  constexpr size_t kBlock = 32;
  constexpr double kStep = 1.01 / (2 * 32767);  // and of float
  std::vector<double> steps(head_dim / kBlock, 0.0);
  for (size_t first = 0, end = 0; first < weights.size(); first = end) {
    while (end < weights.size() && keys.page[end] == keys.page[first]) ++end;
    for (size_t block = 0; block < steps.size(); ++block) {
      double largest = 0;
      for (size_t i = first; i < end; ++i) {
        for (size_t d = block * kBlock; d < (block + 1) * kBlock; ++d)
          largest = std::max(largest, weights[i] * std::fabs(keys.value[i][d]));
      }
      steps[block] += static_cast<double>(end - first) * kStep * largest;
    }
  }
  return steps;
}

void add_key(const AttentionCase& problem, size_t row, const PageSpan& page, size_t slot,
             RowKeys& keys) {
  const CaseOptions& options = problem.options;
  std::vector<float> v(options.head_dim);
  load_v(problem.layout, page.v, slot, v.data());
  const Dot dot = key_dot(problem, row, page, slot);
  const bool rounded_key =
      rounds_to_bf16(options.type) && (page.cos_sin != nullptr || options.type == KvType::kQ8_0);
  const double scale = problem.scale;
  double unit = (static_cast<double>(options.head_dim) + 8) * kFloat;
  if (rounded_key) unit += kBf16;
  double logit = scale * dot.sum;
  double error = scale * dot.magnitude * unit + 4 * std::fabs(logit) * kFloat;
  if (options.soft_cap > 0.0f) {
    logit = options.soft_cap * std::tanh(logit / options.soft_cap);
    error += 1e-6 * options.soft_cap;
  }
  if (page.bias != nullptr) {
    logit += page.bias[slot];
    error += 4 * (std::fabs(page.bias[slot]) + std::fabs(logit)) * kFloat;
  }
  keys.logit.push_back(logit);
  keys.error.push_back(error);
  keys.value.push_back(v);
  keys.page.push_back(page.index);
}

}  // namespace

AttentionCase::AttentionCase(const CaseOptions& wanted) : options(wanted) {
  layout = {options.type, kHeads, static_cast<uint32_t>(options.head_dim)};
  scale = std::numbers::ln2_v<float> / 8.0f;
  std::mt19937 random(options.seed);
  make_rows(*this, random);
  make_pages(*this, random);
}

AttendArgs AttentionCase::args(size_t first, size_t count, AttendResult& result) const {
  result.out.assign(count * options.head_dim, 77.0f);
  result.lse.assign(count, 77.0f);
  AttendArgs a;
  a.layout = &layout;
  a.phase = options.phase;
  a.rows = count;
  a.q = q.data() + first * options.head_dim;
  a.q_stride = options.head_dim;
  a.row_begin = row_begin.data() + first;
  a.row_end = row_end.data() + first;
  a.pages = pages;
  a.scale = scale;
  a.soft_cap = options.soft_cap;
  a.rope_pairs = options.rope_pairs;
  a.out = result.out.data();
  a.out_stride = options.head_dim;
  a.lse = result.lse.data();
  return a;
}

AttendResult AttentionCase::attend_rows(size_t first, size_t count) const {
  AttendResult result;
  const AttendArgs a = args(first, count, result);
  std::vector<std::byte> scratch(attend_scratch_bytes(a));
  attend(a, scratch.data());
  return result;
}

Dot key_dot(const AttentionCase& problem, size_t row, const PageSpan& page, size_t slot,
            std::span<const uint16_t> pairs) {
  const CaseOptions& options = problem.options;
  std::vector<float> k(options.head_dim);
  load_k(problem.layout, page.k, slot, k.data());
  const float* q = &problem.q[row * options.head_dim];
  Dot dot;
  for (size_t i = 0; i < (pairs.empty() ? options.head_dim / 2 : pairs.size()); ++i) {
    const size_t pair = pairs.empty() ? i : pairs[i];
    double a = k[2 * pair], b = k[2 * pair + 1];
    double size_a = std::fabs(a), size_b = std::fabs(b);
    if (page.cos_sin != nullptr && pair < options.rope_pairs) {
      const float* angle = page.cos_sin + (slot * options.rope_pairs + pair) * 2;
      const double c = angle[0], s = angle[1], old_a = a, old_b = b;
      a = old_a * c - old_b * s;
      b = old_a * s + old_b * c;
      size_a = size_b = std::fabs(old_a) + std::fabs(old_b);
    }
    dot.sum += a * q[2 * pair] + b * q[2 * pair + 1];
    dot.magnitude += size_a * std::fabs(q[2 * pair]) + size_b * std::fabs(q[2 * pair + 1]);
  }
  return dot;
}

Expected expected(const AttentionCase& problem) {
  const CaseOptions& options = problem.options;
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  Expected want;
  for (size_t row = 0; row < options.rows; ++row) {
    RowKeys keys;
    for (const PageSpan& page : problem.pages) {
      for (size_t slot = 0; slot < kPageTokens; ++slot) {
        const int32_t key = page.index + static_cast<int32_t>(slot);
        if (key < problem.row_begin[row] || key >= problem.row_end[row]) continue;
        if ((page.slots >> slot & 1) == 0) continue;
        if (page.bias != nullptr && page.bias[slot] == kHidden) continue;
        add_key(problem, row, page, slot, keys);
      }
    }
    double largest = kNothing, logit_error = 0, total = 0;
    for (const double logit : keys.logit) largest = std::max(largest, logit);
    for (const double error : keys.error) logit_error = std::max(logit_error, error);
    for (const double logit : keys.logit) total += std::exp(logit - largest);
    const double n = static_cast<double>(keys.logit.size());
    logit_error += 4 * std::fabs(keys.logit.empty() ? 0.0 : largest) * kFloat;
    want.lse.push_back(keys.logit.empty() ? kNothing : largest + std::log(total));
    want.lse_error.push_back(logit_error + kExp + n * kFloat);
    const double value_unit = options.type == KvType::kQ8_0 ? kBf16 : 0.0;
    const double weight_unit = rounds_to_bf16(options.type) ? kBf16 : 0.0;
    const double factor = std::exp(2 * (logit_error + kExp)) * (1 + weight_unit) *
                              (1 + value_unit) * (1 + 2 * (n + 8) * kFloat) -
                          1;
    std::vector<double> weights;
    for (const double logit : keys.logit) weights.push_back(std::exp(logit - largest) / total);
    std::vector<double> steps;
    const bool decode = options.phase == Phase::kDecode && cpu_isa() >= Isa::kAvx512;
    if (options.type == KvType::kQ8_0 && decode)
      steps = weight_steps(keys, weights, options.head_dim);
    for (size_t d = 0; d < options.head_dim; ++d) {
      double sum = 0, magnitude = 0, lost = steps.empty() ? 0.0 : steps[d / 32];
      for (size_t i = 0; i < weights.size(); ++i) {
        sum += weights[i] * keys.value[i][d];
        magnitude += weights[i] * std::fabs(keys.value[i][d]);
        lost += kUnderflow * std::fabs(keys.value[i][d]);
      }
      want.out.push_back(sum);
      want.out_error.push_back(factor * magnitude + lost);
    }
  }
  return want;
}

void expect_close(const AttentionCase& problem, const Expected& want, const AttendResult& got) {
  int failures = 0;
  const auto check = [&](const char* what, size_t i, double w, double error, float g) {
    const bool equal = std::isinf(w) ? g == w : std::fabs(g - w) <= error;  // false for NaN
    if (equal || ++failures > 3) return;
    ADD_FAILURE() << what << "[" << i << "] is " << g << ", want " << w << " +- " << error << " in "
                  << describe(problem.options);
  };
  for (size_t i = 0; i < want.lse.size(); ++i) {
    check("lse", i, want.lse[i], want.lse_error[i], got.lse[i]);
  }
  for (size_t i = 0; i < want.out.size(); ++i) {
    check("out", i, want.out[i], want.out_error[i], got.out[i]);
  }
}

std::string describe(const CaseOptions& o) {
  return fmt::format(
      "isa {} type {} phase {} head_dim {} rows {} keys {} group {} window {} rope {} cap {} "
      "amplitude {} holes {} bias {} seed {}",
      isa_name(cpu_isa()), kv_type_name(o.type), static_cast<int>(o.phase), o.head_dim, o.rows,
      o.keys, o.heads_per_row, o.window, o.rope_pairs, o.soft_cap, o.amplitude, o.holes, o.bias,
      o.seed);
}

}  // namespace reprise::kernels
