// What rows that read few keys get, against a double reference over just these.
#include "fusion/few_keys.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "attention/scripted.h"

namespace reprise {
namespace {

using testing::ScriptedPolicy;
using testing::Toy;

constexpr size_t kPrompt = 260;

/// Head, chunks of 75, 40 and 105 tokens, question.
struct Case {
  explicit Case(uint32_t near, kernels::KvType type = kernels::KvType::kF32)
      : toy({.n_layer = 3, .type = type}, kPrompt) {
    prompt.tokens = tokens;
    prompt.chunks = {{20, 95, nullptr}, {95, 135, nullptr}, {135, 240, nullptr}};
    prompt.question = 240;
    few.near = near;
    for (int32_t at = 0; at < 240; ++at) {
      const bool chosen = at >= 20 && at % 7 == 3;
      if (chosen && at != 136) few.rows.push_back(at);
      if (at < 20 || chosen || at % 5 == 0) few.keys.push_back(at);
    }
    EXPECT_TRUE(kv.reserve(kPrompt));
    for (const int32_t at : {3, 136}) positions.insert(at);  // computed, and not of few.rows
    for (const int32_t at : few.rows) positions.insert(at);
    for (int32_t at = 240; at < static_cast<int32_t>(kPrompt); ++at) positions.insert(at);
    store_all();
  }

  /// Computes rows of a layer; stores what they write.
  std::vector<float> attend(uint32_t layer, std::span<const Row> rows) {
    const size_t q_width = toy.width();
    const size_t kv_width = size_t{toy.config().n_kv_head} * toy.config().head_dim;
    std::vector<float> q, k, v, out(rows.size() * q_width);
    for (const Row& row : rows) {
      const auto at = static_cast<size_t>(row.position);
      q.insert(q.end(), toy.q(layer, at), toy.q(layer, at) + q_width);
      k.insert(k.end(), toy.k(layer, at), toy.k(layer, at) + kv_width);
      v.insert(v.end(), toy.v(layer, at), toy.v(layer, at) + kv_width);
    }
    const Status status = toy.executor().attend(layer, q.data(), k.data(), v.data(), out.data());
    EXPECT_TRUE(status) << status.error().message;
    return out;
  }
  void store_all() {
    std::vector<Row> rows;
    for (int32_t at = 0; at < static_cast<int32_t>(kPrompt); ++at) rows.push_back({0, at, 0});
    const std::vector<SequenceStep> steps = {
        {&kv, &all, 0, kPrompt, kernels::Phase::kPrefill, kPrompt}};
    toy.executor().begin(rows, steps);
    for (uint32_t layer = 0; layer < toy.config().n_layer; ++layer) attend(layer, rows);
  }
  bool reads(int32_t row, int32_t key) const {
    if (!std::ranges::binary_search(few.rows, row)) return true;
    const auto chunk = std::ranges::upper_bound(prompt.chunks, row, {}, &PromptChunk::end);
    const int32_t first = std::max(0, chunk->begin - static_cast<int32_t>(few.near)) / 16 * 16;
    if (key >= first) return true;
    const auto before = std::ranges::lower_bound(few.keys, first) - few.keys.begin();
    const auto whole_pages = few.keys.begin() + before / 16 * 16;
    return std::binary_search(few.keys.begin(), whole_pages, key);
  }
  void expect(const Row& row, const float* out, uint32_t layer) {
    const auto token = static_cast<size_t>(row.position);
    for (size_t head = 0; head < toy.config().n_head; ++head) {
      const auto keep = [&](size_t key) { return reads(row.position, static_cast<int32_t>(key)); };
      const auto want =
          toy.expected(layer, token, head, keep, [&](size_t) { return row.position; });
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(out[head * want.size() + i], want[i], tolerance())
            << "layer " << layer << " row " << token << " head " << head << " dim " << i;
      }
    }
  }

  // bf16 rounds q, keys and weights by 2^-9 of logits and values that are below 5.
  double tolerance() {
    return toy.pages().layout().type == kernels::KvType::kF32 ? testing::kFloatTolerance
                                                              : 3 * 5 * 0x1p-9;
  }

  Toy toy;
  SequenceKv kv = toy.new_sequence();
  ScriptedPolicy all;
  std::vector<int32_t> tokens = std::vector<int32_t>(kPrompt);
  FusedPrompt prompt;
  FewReads few;
  std::set<int32_t> positions;  // of rows to compute
};

class FewKeys : public ::testing::TestWithParam<std::tuple<uint32_t, kernels::KvType>> {};

TEST_P(FewKeys, RowsReadTheirChunkWhatIsNearAndThoseKeys) {
  Case c(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const std::vector<int32_t> all(c.positions.begin(), c.positions.end());
  PackedKeys packed(c.prompt, c.few, all);
  for (const auto part : {std::span(all).first(30), std::span(all).subspan(30)}) {
    std::vector<Row> rows;
    for (const int32_t at : part) rows.push_back({0, at, 0});
    const auto reads = read_steps(c.prompt, c.few, part);
    std::vector<ReadsFew> policies;
    for (const ReadStep& step : reads) policies.emplace_back(packed, step);
    std::vector<SequenceStep> steps;
    for (size_t i = 0; i < reads.size(); ++i) {
      steps.push_back({&c.kv, &policies[i], reads[i].first_row, reads[i].rows,
                       kernels::Phase::kPrefill, kPrompt});
    }
    c.toy.executor().begin(rows, steps);
    for (uint32_t layer = 0; layer < 3; ++layer) {
      ASSERT_TRUE(packed.begin(c.toy.pages(), layer, part.back() + 1));
      const auto out = c.attend(layer, rows);
      for (size_t row = 0; row < rows.size(); ++row) {
        c.expect(rows[row], &out[row * c.toy.width()], layer);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Near, FewKeys,
                         ::testing::Combine(::testing::Values(0u, 20u, 64u, 1u << 20),
                                            ::testing::Values(kernels::KvType::kF32,
                                                              kernels::KvType::kBF16)));

TEST(PackedKeys, TakeTheMemoryOfOneLayer) {
  Case c(0);
  const uint64_t before = c.toy.pages().tiers().memory.bytes;
  PackedKeys keys(c.prompt, c.few, c.few.rows);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(keys.begin(c.toy.pages(), layer, 240));
    const uint64_t pages = PageMap::blocks_of(keys.keys().size());
    EXPECT_EQ(c.toy.pages().tiers().memory.bytes, before + pages * c.toy.pages().page_bytes());
  }
}

TEST(PackedKeys, TakeNoneWhereAllIsNear) {
  Case c(300);
  const uint64_t before = c.toy.pages().tiers().memory.bytes;
  PackedKeys keys(c.prompt, c.few, c.few.rows);
  EXPECT_TRUE(keys.keys().empty());
  ASSERT_TRUE(keys.begin(c.toy.pages(), 0, 240));
  EXPECT_EQ(c.toy.pages().tiers().memory.bytes, before);
}

TEST(PackedKeys, SayThatThereIsNoMemory) {
  Case c(0);
  auto small = PagePool::create(c.toy.pages().layout(), 3, 3 * c.toy.pages().page_bytes());
  ASSERT_TRUE(small);
  SequenceKv other(*small);
  ASSERT_TRUE(other.reserve(16));
  PackedKeys keys(c.prompt, c.few, c.few.rows);
  const Status status = keys.begin(*small, 0, 240);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
}

}  // namespace
}  // namespace reprise
