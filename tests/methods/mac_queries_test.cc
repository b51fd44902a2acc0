// Which queries MAC-Attention compares: those that a model's layer makes of a token, with bias and
// QK-norm and before rotation, while results are those of rotated ones.
#include <gtest/gtest.h>

#include <memory>

#include "methods/mac_testing.h"
#include "model/golden_model.h"

namespace reprise {
namespace {

using kernels::Phase;
using test::Golden;

constexpr uint32_t kWindow = 32;
constexpr MacCut kCut = {2, 6, 4};
const std::string kSpec =
    "mac:min_context=0,window=32,band=6,sink=2,align=4,tau=0.99,guard=false,chain=free";

/// A tiny model of one layer, so that equal tokens have equal queries.
Golden one_layer(const std::string& name) {
  Golden golden = test::read_golden(name);
  golden.config["num_hidden_layers"] = 1;
  golden.config["layer_types"] = {"full_attention"};
  return golden;
}

/// A model that attends through MAC-Attention.
class Reader {
 public:
  explicit Reader(const Golden& golden)
      : folder_(golden),
        model_(*Model::load(folder_.path(), threads_)),
        ropes_(1, &model_->rope(0)),
        executor_(config(), ropes_, threads_),
        pages_(*PagePool::create({kernels::KvType::kF32, config().n_kv_head, config().head_dim}, 1,
                                 1 << 20)),
        kv_(pages_),
        policy_(*create_policy(policy_entries(), kSpec, config())) {}

  const ModelConfig& config() const { return model_->config(); }
  const RopeTable& rope() const { return *ropes_[0]; }
  const Policy& policy() const { return *policy_; }
  const SequenceKv& kv() const { return kv_; }
  Policy& policy() { return *policy_; }
  MacRing ring() const { return testing::saved_ring(*policy_, config(), kWindow, 0, kv_.length()); }

  void read(std::span<const int32_t> tokens, Phase phase) {
    std::vector<Row> rows;
    for (const int32_t token : tokens) {
      rows.push_back({0, kv_.length() + static_cast<int32_t>(rows.size()), token});
    }
    ASSERT_TRUE(kv_.reserve(rows.size()));
    const auto count = static_cast<uint32_t>(rows.size());
    const SequenceStep step = {&kv_, policy_.get(), 0, count, phase, rows.back().position + 1};
    executor_.begin(rows, {&step, 1});
    const size_t decode_rows = phase == Phase::kDecode ? rows.size() : 0;
    ASSERT_TRUE(model_->forward({rows, decode_rows, {}}, executor_, nullptr));
    kv_.commit(rows.size());
  }
  /// A prompt of 24 tokens, then as many decoded ones that the prompt does not hold, over and over.
  void read_all() {
    std::vector<int32_t> prompt, answer;
    for (int32_t i = 0; i < 24; ++i) {
      prompt.push_back(10 + i);
      answer.push_back(40 + i % 5);
    }
    read(prompt, Phase::kPrefill);
    for (const int32_t token : answer) read({&token, 1}, Phase::kDecode);
  }

 private:
  test::GoldenFolder folder_;
  ThreadPool threads_{1};
  std::unique_ptr<Model> model_;
  std::vector<const RopeTable*> ropes_;
  CpuExecutor executor_;
  PagePool pages_;
  SequenceKv kv_;
  std::unique_ptr<Policy> policy_;
};

/// [n_head, head_dim] that an entry holds.
std::vector<float> queries_of(const Reader& reader, const MacRing& ring, int32_t position) {
  const ModelConfig& config = reader.config();
  const size_t dim = config.head_dim;
  std::vector<float> queries(config.n_head * dim);
  EXPECT_EQ(ring.tag(ring.slot(position)), position);
  for (size_t head = 0; head < config.n_head; ++head) {
    ring.load_q(head, ring.slot(position), &queries[head * dim]);
  }
  return queries;
}

class MacQueries : public ::testing::TestWithParam<const char*> {};

TEST_P(MacQueries, EqualTokensAreReusedWhereverTheyStand) {
  Reader reader(one_layer(GetParam()));
  reader.read_all();
  const MacRing ring = reader.ring();
  EXPECT_EQ(queries_of(reader, ring, 47), queries_of(reader, ring, 42));
  EXPECT_EQ(queries_of(reader, ring, 47), queries_of(reader, ring, 27));
  EXPECT_NE(queries_of(reader, ring, 47), queries_of(reader, ring, 46));
  const auto figures = testing::stats_of(reader.policy());
  EXPECT_NEAR(figures.at("mac_group_hits"), 19.0 / 24, 1e-9);  // all but the first five
  EXPECT_EQ(figures.at("mac_distance"), 0.0);
  EXPECT_EQ(figures.at("mac_lag"), 5.0);
}

// By the weights that the model's own rotary table gives, its attention factor included.
TEST_P(MacQueries, ResultsAreThoseOfRotatedQueries) {
  Reader reader(one_layer(GetParam()));
  reader.read_all();
  const ModelConfig& config = reader.config();
  const MacRing ring = reader.ring();
  const size_t dim = config.head_dim, group = config.n_head / config.n_kv_head;
  for (const int32_t position : {17, 23, 24, 28}) {  // of the prompt; computed in full
    std::vector<float> q = queries_of(reader, ring, position);
    std::vector<float> cos_sin(reader.rope().pairs() * 2);
    reader.rope().cos_sin(position, cos_sin.data());
    kernels::rope(q.data(), cos_sin.data(), config.n_head, config.head_dim, reader.rope().pairs());
    for (size_t head = 0; head < config.n_head; ++head) {
      double total = 0.0, largest = 0.0;
      for (int32_t key = kCut.sink; key < kCut.at(position); ++key) {
        const auto k = testing::stored(reader.kv(), 0, head / group, key);
        const double logit = config.attention_scale * testing::dot(&q[head * dim], k.data(), dim);
        total += std::exp(logit);
        largest = std::max(largest, std::abs(logit));
      }
      // Queries are kept in bf16.
      EXPECT_NEAR(ring.state(head, ring.slot(position)).lse, std::log(total),
                  1e-5 + 0x1p-8 * largest * static_cast<double>(dim))
          << position << " " << head;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MacQueries,
                         ::testing::Values("llama", "qwen2", "qwen3", "qwen2_yarn"));

TEST(MacQueries, HoldTheBias) {
  Golden golden = one_layer("qwen2");
  test::GoldenTensor& bias = golden.tensor("model.layers.0.self_attn.q_proj.bias");
  bias.scale = 0.0f;
  Reader without(golden);
  bias.offset = 3.0f;
  Reader with(golden);
  for (Reader* reader : {&without, &with}) reader->read_all();
  const auto more = queries_of(with, with.ring(), 47),
             less = queries_of(without, without.ring(), 47);
  for (size_t i = 0; i < more.size(); ++i) EXPECT_NEAR(more[i] - less[i], 3.0f, 0x1p-5f);
}

TEST(MacQueries, AreThoseThatWereNormed) {
  Golden golden = one_layer("qwen3");
  test::GoldenTensor& norm = golden.tensor("model.layers.0.self_attn.q_norm.weight");
  norm.offset = 3.0f;
  norm.scale = 0.0f;
  Reader reader(golden);
  reader.read_all();
  const auto queries = queries_of(reader, reader.ring(), 47);
  const size_t dim = reader.config().head_dim;
  for (size_t head = 0; head < reader.config().n_head; ++head) {
    const float* q = &queries[head * dim];
    EXPECT_NEAR(std::sqrt(testing::dot(q, q, dim) / static_cast<double>(dim)), 3.0, 0.02);
  }
}

// Lengths that are compared are those of the model: the factor stretches rotated queries alone.
TEST(MacQueries, HaveNoFactorOfYarn) {
  Golden golden = one_layer("qwen2_yarn");
  Reader yarn(golden);
  golden.config["rope_parameters"] = {{"rope_theta", 10000.0}, {"rope_type", "default"}};
  Reader plain(golden);
  for (Reader* reader : {&yarn, &plain}) reader->read_all();
  EXPECT_GT(yarn.rope().attention_factor(), 1.1f);
  EXPECT_EQ(queries_of(yarn, yarn.ring(), 47), queries_of(plain, plain.ring(), 47));
  const size_t slot = yarn.ring().slot(24);
  EXPECT_NE(yarn.ring().state(0, slot).lse, plain.ring().state(0, slot).lse);
}

}  // namespace
}  // namespace reprise
