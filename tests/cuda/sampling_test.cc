#include "kernels/cuda/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "cuda/device_testing.h"
#include "kernels/matmul_case.h"

namespace reprise::kernels::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kUntouched = -77;

// Salmon et al. 2011, in 64-bit products.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{c[0]} * 0xd2511f53u, b = uint64_t{c[2]} * 0xcd9e8d57u;
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return c;
}

double uniform(uint64_t seed, int32_t position) {
  const auto bits = philox({static_cast<uint32_t>(position), 0, 0, 0},
                           {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{bits[1]} << 32 | bits[0]) >> 11) * 0x1p-53;
}

// Answers that the generator's authors published.
TEST(Sampling, ReferenceGeneratorIsPhilox) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

struct Row {
  std::vector<float> logits;
  SampleRule rule;
  int32_t position = 0;
  std::vector<int32_t> history = {};  // [capacity] or empty
};

struct Outcome {
  std::vector<int32_t> tokens, host_tokens, positions, history;
  std::vector<float> logits;
};

constexpr uint32_t kCapacity = 2048;

// So many replays of a captured call.
Outcome run(const std::vector<Row>& rows, bool advance = true, int calls = 1) {
  std::vector<float> logits;
  std::vector<SampleRule> rules;
  std::vector<int32_t> history, positions;
  for (const Row& row : rows) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    rules.push_back(row.rule);
    positions.push_back(row.position);
    std::vector<int32_t> tokens = row.history;
    tokens.resize(kCapacity, kUntouched);
    history.insert(history.end(), tokens.begin(), tokens.end());
  }
  const auto batch = static_cast<uint32_t>(rows.size());
  const auto vocab = static_cast<uint32_t>(rows[0].logits.size());
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<SampleRule> device_rules(rules);
  const DeviceArray<int32_t> device_history(history), device_positions(positions),
      tokens(std::vector<int32_t>(batch, kUntouched));
  const DeviceArray<char> workspace(sampling_workspace(batch, vocab), 0xcd);
  int32_t* host_tokens = nullptr;
  EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&host_tokens), 2 * batch * sizeof(int32_t),
                          cudaHostAllocMapped),
            cudaSuccess);
  std::fill_n(host_tokens, 2 * batch, kUntouched);
  SampleArgs args;
  args.logits = device_logits.get();
  args.batch = batch;
  args.vocab = vocab;
  args.rules = device_rules.get();
  args.history = device_history.get();
  args.history_capacity = kCapacity;
  args.positions = device_positions.get();
  args.tokens = tokens.get();
  args.advance = advance;
  args.host_tokens = host_tokens;
  args.workspace = workspace.get();
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(sample(args, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int call = 0; call < calls; ++call) {
    EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  std::vector<int32_t> last_tokens(batch, kUntouched);
  for (uint32_t i = 0; i < batch; ++i) {
    const int32_t position = rows[i].position + (advance ? calls - 1 : 0);
    if (position >= 0) last_tokens[i] = host_tokens[2 * i + position % 2];
  }
  Outcome out = {tokens.host(), last_tokens, device_positions.host(), device_history.host(),
                 device_logits.host()};
  cudaFreeHost(host_tokens);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return out;
}

// As engine/sampler.cc, which says what is right.
struct Candidate {
  int32_t token;
  float logit;
  double probability;
};

void penalize(Row& row) {
  const SampleRule& rule = row.rule;
  if (rule.repeat_penalty == 1.0f) return;
  std::set<int32_t> recent;
  const int32_t count = std::min(static_cast<int32_t>(rule.repeat_window), row.position + 1);
  for (int32_t back = 0; back < count; ++back) {
    recent.insert(row.history[static_cast<size_t>(row.position - back) % kCapacity]);
  }
  for (const int32_t token : recent) {
    if (token < 0 || token >= static_cast<int32_t>(row.logits.size())) continue;
    float& logit = row.logits[static_cast<size_t>(token)];
    logit = logit > 0.0f ? logit / rule.repeat_penalty : logit * rule.repeat_penalty;
  }
}

std::vector<Candidate> sorted(const std::vector<float>& logits) {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates.push_back({static_cast<int32_t>(i), logits[i], 0.0});
  }
  if (candidates.empty()) return {{0, 0.0f, 1.0}};
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  });
  return candidates;
}

std::vector<Candidate> kept(std::vector<Candidate> candidates, const SampleRule& rule) {
  if (rule.top_k > 0 && rule.top_k < candidates.size()) candidates.resize(rule.top_k);
  const float top = candidates.front().logit;
  double mass = 0;
  for (Candidate& c : candidates) {
    c.probability = c.logit == top ? 1.0f : std::exp((c.logit - top) / rule.temp);
    mass += c.probability;
  }
  size_t count = 0;
  for (double before = 0; count < candidates.size(); before += candidates[count++].probability) {
    if (count == 0) continue;
    const bool reached = before >= double{rule.top_p} * mass;
    if (reached || candidates[count].probability < double{rule.min_p}) break;
  }
  candidates.resize(count);
  return candidates;
}

// exp has an error of 2^-22 of itself, probabilities are multiples of 2^-43 of the largest.
double draw_error(size_t vocab, double mass) {
  return mass * 0x1p-20 + static_cast<double>(vocab) * 0x1p-43;
}

// Whether the token is what the rule, which is not greedy, draws.
void expect_drawn(const std::vector<Candidate>& all, const SampleRule& rule, int32_t position,
                  int32_t token) {
  const std::vector<Candidate> candidates = kept(all, rule);
  double mass = 0, before = 0;
  for (const Candidate& candidate : candidates) mass += candidate.probability;
  const double target = uniform(rule.seed, position) * mass;
  const double error = draw_error(all.size(), mass);
  for (const Candidate& candidate : candidates) {
    const double end = before + candidate.probability;
    if (candidate.token == token) {
      EXPECT_GE(target, before - error) << "token " << token;
      EXPECT_LE(target, end + error) << "token " << token;
      return;
    }
    before = end;
  }
  ADD_FAILURE() << "token " << token << " is none of the " << candidates.size() << " kept";
}

int32_t argmax(const std::vector<float>& logits) {
  float largest = -kInfinity;
  int32_t token = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || (token >= 0 && logits[i] <= largest)) continue;
    largest = logits[i];
    token = static_cast<int32_t>(i);
  }
  return std::max(token, 0);
}

std::vector<float> scaled(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

std::vector<float> rounded(std::vector<float> values, float step) {
  for (float& value : values) value = std::round(value / step) * step;
  return values;
}

constexpr size_t kVocabs[] = {1, 2, 7, 1000, 4095, 4097, 49152, 128256, 151937, 262144};

// Logits of kinds that are hard to choose from.
std::vector<std::vector<float>> hard_logits(size_t vocab) {
  std::vector<std::vector<float>> out = {
      scaled(random_values(vocab, 1), 3.0f),
      scaled(random_values(vocab, 2), 1e-3f),                // flat
      rounded(scaled(random_values(vocab, 3), 3.0f), 0.5f),  // thousands of ties
      std::vector<float>(vocab, -1.25f),                     // nothing but ties
      scaled(random_values(vocab, 4), 40.0f),                // most have no probability
      scaled(random_values(vocab, 5), 3.0f),                 // made bad below
      std::vector<float>(vocab, std::nanf("")),
      std::vector<float>(vocab, -kInfinity)};
  for (size_t i = 0; i < vocab; i += 3) out[5][i] = i % 2 == 0 ? NAN : -kInfinity;
  std::vector<float> infinite = out[0];
  infinite[vocab / 2] = infinite[vocab - 1] = kInfinity;
  out.push_back(infinite);
  return out;
}

TEST(Sampling, GreedyTakesTheFirstOfTheLargest) {
  REPRISE_NEEDS_DEVICE();
  for (const size_t vocab : kVocabs) {
    std::vector<Row> rows;
    for (const std::vector<float>& logits : hard_logits(vocab)) rows.push_back({logits, {}, 3});
    for (const size_t place : {size_t{0}, vocab / 2, vocab - 1}) {
      std::vector<float> logits = random_values(vocab, 9);
      logits[place] = 50.0f;
      logits[vocab - 1] = 50.0f;
      rows.push_back({logits, {}, 20});
    }
    std::vector<float> zeros(vocab, -0.0f);
    zeros[vocab - 1] = 0.0f;  // equal
    rows.push_back({zeros, {}, 0});
    const Outcome out = run(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(out.tokens[i], argmax(rows[i].logits)) << "row " << i << " of " << vocab;
    }
    EXPECT_EQ(out.host_tokens, out.tokens);
  }
}

std::vector<SampleRule> some_rules() {
  SampleRule plain{.temp = 1.0f}, hot{.temp = 5.0f}, cold{.temp = 0.01f}, usual{.temp = 0.7f},
      one{.temp = 1.5f}, tiny{.temp = 1.0f}, likely{.temp = 1.0f}, everything{.temp = 0.9f},
      many{.temp = 2.0f}, half{.temp = 3.0f}, edge{.temp = 3.0f};
  usual.top_k = 40;
  usual.top_p = 0.95f;
  one.top_k = 1;
  tiny.top_p = 1e-6f;
  likely.min_p = 0.05f;
  everything.top_k = 1000;
  everything.top_p = 0.8f;
  everything.min_p = 0.01f;
  many.top_k = 100000;
  half.top_p = 0.5f;
  edge.top_k = 513;  // one more than the kernel keeps at hand
  return {plain, hot, cold, usual, one, tiny, likely, everything, many, half, edge};
}

TEST(Sampling, DrawsWhatTheRuleSays) {
  REPRISE_NEEDS_DEVICE();
  uint64_t seed = 0x123456789abcdef;
  for (const size_t vocab : kVocabs) {
    for (const std::vector<float>& logits : hard_logits(vocab)) {
      std::vector<Row> rows;
      for (SampleRule rule : some_rules()) {
        rule.seed = seed += 0x9876543210;
        rows.push_back({logits, rule, static_cast<int32_t>(rows.size() * 7)});
      }
      const Outcome out = run(rows);
      const std::vector<Candidate> candidates = sorted(logits);
      for (size_t i = 0; i < rows.size(); ++i) {
        SCOPED_TRACE("logit " + std::to_string(logits[0]) + ", rule " + std::to_string(i) +
                     ", vocabulary " + std::to_string(vocab));
        expect_drawn(candidates, rows[i].rule, rows[i].position, out.tokens[i]);
      }
      EXPECT_EQ(run(rows).tokens, out.tokens);
    }
  }
}

TEST(Sampling, RowsDoNotDependOnEachOther) {
  REPRISE_NEEDS_DEVICE();
  std::vector<Row> rows;
  for (const SampleRule& rule : some_rules()) {
    rows.push_back({scaled(random_values(50000, 31), 2.0f), rule, 11});
  }
  rows[3].rule.temp = 0.0f;
  const Outcome out = run(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(run({rows[i]}).tokens[0], out.tokens[i]) << i;
  }
}

TEST(Sampling, FrequenciesFollowTheProbabilities) {
  REPRISE_NEEDS_DEVICE();
  SampleRule rule{.temp = 0.8f, .top_p = 0.97f, .min_p = 0.004f, .top_k = 60};
  const std::vector<float> logits = scaled(random_values(300, 77), 1.5f);
  const std::vector<Candidate> candidates = kept(sorted(logits), rule);
  ASSERT_GT(candidates.size(), 15u);
  double mass = 0;
  for (const Candidate& candidate : candidates) mass += candidate.probability;
  for (const uint64_t seed : {0ull, 1ull, 0xfeedfacecafebeefull}) {
    rule.seed = seed;
    std::vector<Row> rows;
    const int32_t count = 8192;
    for (int32_t position = 0; position < count; ++position) {
      rows.push_back({logits, rule, position});
    }
    std::vector<double> seen(logits.size());
    for (const int32_t token : run(rows).tokens) ++seen[static_cast<size_t>(token)];
    double statistic = 0, within = 0;
    for (const Candidate& candidate : candidates) {
      const double expected = count * candidate.probability / mass;
      const double excess = seen[static_cast<size_t>(candidate.token)] - expected;
      statistic += excess * excess / expected;
      within += seen[static_cast<size_t>(candidate.token)];
    }
    EXPECT_EQ(within, count);
    // Chi-square has mean f and variance 2 f: five standard deviations both ways.
    const auto freedom = static_cast<double>(candidates.size() - 1);
    EXPECT_NEAR(statistic, freedom, 5 * std::sqrt(2 * freedom)) << "seed " << seed;
  }
}

TEST(Sampling, PenaltyCountsEachRecentTokenOnce) {
  REPRISE_NEEDS_DEVICE();
  const size_t vocab = 9001;
  const std::vector<int32_t> tokens = {8,    8, 4096, 9000, 8,  -1,   9001, 4095,
                                       8191, 8, 0,    77,   77, 8192, 1,    2};
  std::vector<int32_t> history;  // repeats lie in a warp, and further than a block has threads
  for (uint32_t i = 0; i < kCapacity; ++i) history.push_back(tokens[(i + i / 16 * 3) % 16]);
  for (const float temp : {0.0f, 1.0f}) {
    std::vector<Row> rows;
    for (const int32_t position : {0, 4, 15, 16, 2047, 2048, 5000}) {
      for (const uint32_t window : {0u, 1u, 5u, 100u, kCapacity - 1}) {
        Row row{scaled(random_values(vocab, 55), 2.0f), {.temp = temp}, position, history};
        row.rule.repeat_penalty = 1.7f;
        row.rule.repeat_window = window;
        for (const int32_t token : tokens) {
          if (token >= 0 && token < 9001) {
            row.logits[static_cast<size_t>(token)] = token % 2 == 0 ? 20.0f : -20.0f;
          }
        }
        rows.push_back(row);
      }
    }
    const Outcome out = run(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      Row row = rows[i];
      penalize(row);
      const auto first = out.logits.begin() + static_cast<std::ptrdiff_t>(i * vocab);
      EXPECT_TRUE(std::equal(row.logits.begin(), row.logits.end(), first)) << i;
      if (temp == 0.0f) {
        EXPECT_EQ(out.tokens[i], argmax(row.logits)) << i;
      } else {
        expect_drawn(sorted(row.logits), row.rule, row.position, out.tokens[i]);
      }
    }
  }
}

TEST(Sampling, WritesHistoryAndPositions) {
  REPRISE_NEEDS_DEVICE();
  for (const float temp : {0.0f, 1.0f}) {
    const std::vector<float> logits = scaled(random_values(5000, 5), 3.0f);
    const SampleRule rule{.temp = temp, .seed = 5};
    const std::vector<Row> rows = {
        {logits, rule, 14}, {logits, rule, -1}, {logits, rule, 15}, {logits, rule, 0}};
    for (const bool advance : {true, false}) {
      const Outcome out = run(rows, advance);
      for (size_t i = 0; i < rows.size(); ++i) {
        const int32_t position = rows[i].position;
        const bool idle = position < 0;
        EXPECT_EQ(out.tokens[i] == kUntouched, idle);
        EXPECT_EQ(out.host_tokens[i], out.tokens[i]);
        EXPECT_EQ(out.positions[i], position + (advance && !idle ? 1 : 0));
        for (uint32_t slot = 0; slot < kCapacity; ++slot) {
          const bool written = !idle && slot == static_cast<uint32_t>(position + 1) % kCapacity;
          EXPECT_EQ(out.history[i * kCapacity + slot], written ? out.tokens[i] : kUntouched);
        }
      }
    }
  }
}

TEST(Sampling, StepsFollowPositions) {
  REPRISE_NEEDS_DEVICE();
  const SampleRule rule{.temp = 1.3f, .top_p = 0.9f, .seed = 99};
  const std::vector<float> logits = scaled(random_values(49152, 6), 3.0f);
  const Outcome out = run({{logits, rule, 2}, {logits, {}, 5}}, true, 7);
  const std::vector<Candidate> candidates = sorted(logits);
  for (int32_t position = 2; position < 9; ++position) {
    expect_drawn(candidates, rule, position, out.history[static_cast<size_t>(position) + 1]);
  }
  for (size_t slot = 6; slot < 13; ++slot) {
    EXPECT_EQ(out.history[kCapacity + slot], argmax(logits));
  }
}

TEST(Sampling, VocabulariesThatDoNotFitAreRefused) {
  SampleArgs args;
  EXPECT_EQ(sample(args, nullptr), cudaSuccess);
  args.batch = 1;
  EXPECT_EQ(sample(args, nullptr), cudaErrorInvalidValue);
  args.vocab = (1u << 20) + 1;
  EXPECT_EQ(sample(args, nullptr), cudaErrorNotSupported);
}

}  // namespace
}  // namespace reprise::kernels::cuda
