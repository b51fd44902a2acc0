// MAC-Attention step by step beside its model in double precision.
#include <gtest/gtest.h>

#include <random>

#include "methods/mac_model.h"
#include "methods/mac_testing.h"
#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Recorder;
using testing::Toy;

struct Rules {
  int32_t sink, band, align, min_context, max_gap, max_age;
  float distance2, max_error;
  bool split, anchored;
};
struct Entry {
  int32_t position, anchor;
  float lse, share, drift, peak;
  uint32_t depth;
};
using Model = test::MacRecurrence<Rules, Entry>;

Rules rules_of(const MacSettings& s) {
  return {s.cut.sink, s.cut.band,  s.cut.align, s.min_context, s.max_gap,
          s.max_age,  s.distance2, s.max_error, s.split,       s.anchored};
}

/// A sequence whose every step is also computed by the model. Of one layer.
class Followed {
 public:
  Followed(Toy& toy, const MacOptions& options, std::string_view inner)
      : Followed(toy, std::make_unique<MacPolicy>(options, toy.config(),
                                                  std::make_unique<Recorder>(toy, inner))) {}

  Followed fork() const {
    Followed copy(*toy_, policy_->fork());
    copy.kv_ = kv_;
    copy.model_ = model_;
    copy.keys_ = keys_;
    copy.values_ = values_;
    return copy;
  }
  int32_t length() const { return kv_.length(); }
  const Policy& policy() const { return *policy_; }

  void prefill(size_t rows) {
    const int32_t first = length();
    toy_->step(kv_, *policy_, rows, Phase::kPrefill);
    load_new_keys();
    model_.listed = {};
    model_.starts = toy_->prompt_end - window();
    for (int32_t at = std::max(first, toy_->prompt_end - window()); at < length(); ++at) {
      if (!model_.stores(at)) continue;
      compute(at, std::vector<int32_t>(heads_.n_head, -1));
    }
    check_ring();
  }

  void decode() {
    const int32_t position = length();
    const std::vector<float> got = toy_->step(kv_, *policy_, 1, Phase::kDecode);
    load_new_keys();
    list_keys();
    std::vector<int32_t> matches;
    for (uint32_t kv_head = 0; kv_head < heads_.n_kv_head; ++kv_head) {
      std::vector<int32_t> own(heads_.group(), -1);
      if (position >= rules_.min_context) own = model_.nearest(kv_head, position, query(position));
      model_.decide(own);
      matches.insert(matches.end(), own.begin(), own.end());
    }
    const std::vector<double> want = compute(position, matches);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], testing::kFloatTolerance) << "head " << i / heads_.head_dim;
    }
    check_ring();
  }

  /// A step of another policy.
  void bypass() {
    toy_->step(kv_, *testing::make_policy(*toy_, "full"), 1, Phase::kDecode);
    load_new_keys();
  }

  void truncate(int32_t tokens) {
    policy_->truncate(tokens);
    kv_.truncate(static_cast<size_t>(tokens));
    keys_.resize(static_cast<size_t>(tokens));
    values_.resize(static_cast<size_t>(tokens));
    for (Entry& entry : model_.entries) {
      if (entry.position >= tokens) entry.position = -1;
    }
  }

 private:
  Followed(Toy& toy, std::unique_ptr<Policy> policy)
      : toy_(&toy),
        policy_(std::move(policy)),
        rules_(rules_of(mac().settings())),
        heads_{toy.config().n_head, toy.config().n_kv_head, toy.config().head_dim,
               static_cast<uint32_t>(mac().settings().window)},
        kv_(toy.new_sequence()),
        model_(heads_, rules_,
               [](std::span<float> q) {
                 for (float& x : q) x = to_float(to_bf16(x));
               },
               {}) {}

  const MacPolicy& mac() const { return static_cast<const MacPolicy&>(*policy_); }
  int32_t window() const { return static_cast<int32_t>(heads_.window); }
  const float* query(int32_t position) { return toy_->q(0, static_cast<size_t>(position)); }

  /// As they are stored: [tokens][n_kv_head, head_dim].
  void load_new_keys() {
    for (auto token = static_cast<int32_t>(keys_.size()); token < length(); ++token) {
      keys_.emplace_back();
      values_.emplace_back();
      for (uint32_t head = 0; head < heads_.n_kv_head; ++head) {
        const auto key = testing::stored(kv_, 0, head, token);
        const auto value = testing::stored(kv_, 0, head, token, true);
        keys_.back().insert(keys_.back().end(), key.begin(), key.end());
        values_.back().insert(values_.back().end(), value.begin(), value.end());
      }
    }
  }

  /// What the inner policy chose last, for heads that reuse nothing.
  void list_keys() {
    auto& seen = static_cast<const Recorder&>(mac().wrapped()).seen;
    const auto chosen = seen.find(0);
    model_.listed = {};
    if (chosen == seen.end() || chosen->second.selection.all) return;
    const SelectionPart& part = chosen->second.selection.parts.at(0);
    model_.listed = [part](uint32_t kv_head, int32_t token) {
      const auto ranges = part.list(kv_head);
      return std::ranges::any_of(
          ranges, [&](const KeyRange& range) { return token >= range.begin && token < range.end; });
    };
  }

  std::vector<double> compute(int32_t position, const std::vector<int32_t>& matches) {
    const float* plain = query(position);
    std::vector<float> rotated(plain, plain + toy_->width());
    std::vector<float> cos_sin(toy_->rope().pairs() * 2);
    toy_->rope().cos_sin(position, cos_sin.data());
    kernels::rope(rotated.data(), cos_sin.data(), heads_.n_head, heads_.head_dim,
                  toy_->rope().pairs());
    std::vector<double> out(toy_->width());
    for (uint32_t head = 0; head < heads_.n_head; ++head) {
      const size_t at = size_t{head} * heads_.head_dim;
      const size_t kv_at = size_t{head / heads_.group()} * heads_.head_dim;
      const auto logit = [&](int32_t token) {
        const float* key = &keys_[static_cast<size_t>(token)][kv_at];
        return toy_->config().attention_scale * testing::dot(&rotated[at], key, heads_.head_dim);
      };
      const auto value = [&](int32_t token, uint32_t d) {
        return double{values_[static_cast<size_t>(token)][kv_at + d]};
      };
      double lse = 0.0;
      model_.attend({position, plain, true, model_.stores(position)}, head, matches[head], logit,
                    value, &out[at], &lse);
    }
    return out;
  }

  void check_ring() {
    const MacRing ring =
        testing::saved_ring(*policy_, toy_->config(), heads_.window, 0, kv_.length());
    const size_t dim = heads_.head_dim;
    std::vector<float> q(dim), out(dim);
    for (uint32_t head = 0; head < heads_.n_head; ++head) {
      for (int32_t slot = 0; slot < window(); ++slot) {
        SCOPED_TRACE(::testing::Message() << "head " << head << " slot " << slot);
        const size_t i = model_.index(head, slot);
        const Entry& want = model_.entries[i];
        ASSERT_EQ(ring.tag(static_cast<size_t>(slot)), want.position);
        if (want.position < 0) continue;
        const MacState& state = ring.state(head, static_cast<size_t>(slot));
        ASSERT_EQ(state.anchor, want.anchor);
        ASSERT_EQ(state.depth, want.depth);
        ASSERT_NEAR(state.share, want.share, testing::kFloatTolerance);
        ASSERT_NEAR(state.peak, want.peak, testing::kFloatTolerance);
        ASSERT_NEAR(state.drift, want.drift, 1e-5f * (1.0f + want.drift));
        ASSERT_TRUE(state.lse == want.lse || std::abs(state.lse - want.lse) < 1e-5f);
        ring.load_q(head, static_cast<size_t>(slot), q.data());
        ring.load_out(head, static_cast<size_t>(slot), out.data());
        for (size_t d = 0; d < dim; ++d) {
          ASSERT_EQ(q[d], model_.q[i * dim + d]);
          ASSERT_NEAR(out[d], model_.out[i * dim + d], testing::kFloatTolerance);
        }
      }
    }
  }

  Toy* toy_;
  std::unique_ptr<Policy> policy_;
  Rules rules_;
  test::MacHeads heads_;
  SequenceKv kv_;
  Model model_;
  std::vector<std::vector<float>> keys_, values_;
};

/// Gives the next token queries that are mostly near those of recent ones.
void ask(Toy& toy, const Followed& sequence, std::mt19937& random) {
  std::normal_distribution<float> normal;
  const auto token = static_cast<size_t>(sequence.length());
  const size_t dim = toy.config().head_dim, same = token - 1 - random() % 20;
  const bool together = random() % 2 == 0;
  for (size_t head = 0; head < toy.config().n_head; ++head) {
    float* q = toy.q(0, token) + head * dim;
    const float* near = toy.q(0, together ? same : token - 1 - random() % 20) + head * dim;
    if (random() % 10 == 0) near = nullptr;  // like none
    const float noise = random() % 5 == 0 ? 0.0f : 0.05f;
    for (size_t d = 0; d < dim; ++d) {
      q[d] = near != nullptr ? near[d] + noise * normal(random) : 2.0f * normal(random);
    }
  }
}

struct Case {
  const char* name;
  uint32_t n_head, n_kv_head;
  std::string_view inner = "full";
  void (*change)(MacOptions&);
};

MacOptions small_options() {
  MacOptions options;
  options.min_context = 0;
  options.window = 24;
  options.band = 16;
  options.sink = 8;
  options.align = 4;
  options.tau = 0.6f;
  options.max_error = 0.0f;
  options.guard = false;
  return options;
}

const Case kCases[] = {
    {"Groups", 4, 2, "full", [](MacOptions&) {}},
    {"SmallWindow", 6, 2, "full",
     [](MacOptions& o) { o.window = 4, o.band = o.sink = 0, o.align = 1, o.mixed = "split"; }},
    {"BandOfOne", 8, 2, "full",
     [](MacOptions& o) { o.window = 64, o.band = 1, o.align = 16, o.chain = "free"; }},
    {"ManySinks", 3, 3, "full", [](MacOptions& o) { o.sink = 64, o.align = 16, o.max_age = 20; }},
    {"Anchored", 4, 4, "full", [](MacOptions& o) { o.chain = "anchored", o.min_context = 150; }},
    {"BoundedError", 4, 2, "full", [](MacOptions& o) { o.max_error = 0.1f, o.max_gap = 9; }},
    {"AsPublished", 8, 2, "full", [](MacOptions& o) { o.mode = "paper", o.band = 8; }},
    {"NothingIsPast", 4, 1, "full", [](MacOptions& o) { o.band = 1000, o.align = 1; }},
    {"OverPages", 4, 2, "quest:budget=96", [](MacOptions&) {}},
    {"OverPagesSplit", 6, 2, "quest:budget=96", [](MacOptions& o) { o.mixed = "split"; }}};

class MacRecurrence : public ::testing::TestWithParam<Case> {};

TEST_P(MacRecurrence, EveryStepIsThatOfTheModel) {
  constexpr size_t kTokens = 420;
  const Case& how = GetParam();
  Toy toy({1, how.n_head, how.n_kv_head, 16, KvType::kF32}, kTokens);
  MacOptions options = small_options();
  how.change(options);
  std::mt19937 random(3);
  Followed sequence(toy, options, how.inner);
  const auto decode = [&](Followed& of, int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE(of.length());
      ask(toy, of, random);
      of.decode();
    }
  };
  toy.prompt_end = 120;
  for (const size_t rows : {70, 45, 5}) sequence.prefill(rows);
  decode(sequence, 60);
  Followed fork = sequence.fork();
  testing::change_tokens(toy, 180, 240);  // another text
  decode(fork, 50);
  testing::change_tokens(toy, 180, 240);
  decode(sequence, 40);
  sequence.bypass();
  decode(sequence, 40);
  sequence.truncate(250);
  decode(sequence, 60);
  sequence.truncate(205);
  toy.prompt_end = 230;
  sequence.prefill(25);  // the next turn of a conversation
  decode(sequence, 80);
  const bool reuses = options.band < kTokens;
  const double hits = testing::stats_of(sequence.policy()).at("mac_head_hits");
  EXPECT_EQ(hits > 0.2, reuses) << hits;
  EXPECT_LT(hits, 0.98);
  if (reuses && options.chain != "anchored") {
    EXPECT_GT(testing::stats_of(sequence.policy()).at("mac_depth"), 1.2);
  }
}

INSTANTIATE_TEST_SUITE_P(Options, MacRecurrence, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace reprise
