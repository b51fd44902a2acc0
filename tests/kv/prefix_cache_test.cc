#include "kv/prefix_cache.h"

#include <algorithm>
#include <map>

#include "kv/kv_testing.h"

namespace reprise {
namespace {

using Tokens = std::vector<int32_t>;

// The KV of a token depends on all tokens before it; so do these values.
Tokens values_of(const Tokens& tokens) {
  Tokens values;
  uint64_t state = 17;
  for (const int32_t token : tokens) {
    state = (state * 6364136223846793005u + static_cast<uint64_t>(token) + 1) % 99'999'989;
    values.push_back(static_cast<int32_t>(state));
  }
  return values;
}

// `blocks` blocks of 16 equal tokens each.
Tokens prompt(std::initializer_list<int32_t> blocks, size_t extra = 0) {
  Tokens tokens;
  for (const int32_t block : blocks) tokens.insert(tokens.end(), kPageTokens, block);
  tokens.insert(tokens.end(), extra, 99);
  return tokens;
}

// Reads a prompt as an engine does: reuses what the cache has, computes the rest, stores it.
bool read_prompt(PrefixCache& cache, PagePool& pool, const Tokens& tokens) {
  SequenceKv sequence = cache.match(tokens, tokens.size());
  const Tokens values = values_of(tokens);
  const auto reused = static_cast<size_t>(sequence.length());
  EXPECT_EQ(reused % kPageTokens, 0u);
  expect_values(sequence, Tokens(values.begin(), values.begin() + sequence.length()));
  const Tokens rest(values.begin() + sequence.length(), values.end());
  const uint64_t pages = pool.layers() * (rest.size() / kPageTokens + 2);
  if (!append(sequence, rest) && !(cache.make_room(pages) && append(sequence, rest))) return false;
  cache.insert(tokens, sequence);
  return true;
}

size_t matched(PrefixCache& cache, const Tokens& tokens) {
  return static_cast<size_t>(cache.match(tokens, tokens.size()).length());
}

TEST(PrefixCache, FindsTheLongestStoredPrefix) {
  PagePool pool = small_pool(2, 200);
  PrefixCache cache(pool);
  const Tokens tokens = prompt({1, 2, 3}, 5);
  EXPECT_EQ(matched(cache, tokens), 0u);
  ASSERT_TRUE(read_prompt(cache, pool, tokens));
  EXPECT_EQ(cache.nodes(), 3u);
  EXPECT_EQ(cache.bytes(), 3 * 2 * pool.page_bytes());
  EXPECT_EQ(pool.used_bytes(), cache.bytes());  // the partial page went with its sequence
  EXPECT_EQ(matched(cache, tokens), 48u);
  EXPECT_EQ(cache.match(tokens, 47).length(), 32);
  EXPECT_EQ(cache.match(tokens, 0).length(), 0);
  EXPECT_EQ(matched(cache, prompt({1, 2, 4})), 32u);
  EXPECT_EQ(matched(cache, prompt({2, 3})), 0u);  // the same pages elsewhere are other KV
  EXPECT_EQ(matched(cache, {}), 0u);
  Tokens edited = tokens;
  edited[31] = 7;
  EXPECT_EQ(matched(cache, edited), 16u);
}

TEST(PrefixCache, StoresACommonPrefixOnce) {
  PagePool pool = small_pool(1, 200);
  PrefixCache cache(pool);
  ASSERT_TRUE(read_prompt(cache, pool, prompt({1, 2, 3})));
  ASSERT_TRUE(read_prompt(cache, pool, prompt({1, 2, 4, 5})));
  EXPECT_EQ(cache.nodes(), 5u);
  // A sequence that was computed apart does not replace what is stored.
  SequenceKv apart(pool);
  ASSERT_TRUE(append(apart, values_of(prompt({1, 2, 3}))));
  cache.insert(prompt({1, 2, 3}), apart);
  EXPECT_EQ(cache.nodes(), 5u);
  EXPECT_EQ(pool.references(0, apart.pages(0)[0]), 1u);
}

TEST(PrefixCache, MatchIsAForkThatWritesApart) {
  PagePool pool = small_pool(1, 200);
  PrefixCache cache(pool);
  const Tokens tokens = prompt({1, 2});
  ASSERT_TRUE(read_prompt(cache, pool, tokens));
  SequenceKv sequence = cache.match(tokens, 32);
  sequence.truncate(20);
  ASSERT_TRUE(append(sequence, {5, 6, 7}));
  expect_values(cache.match(tokens, 32), values_of(tokens));
  EXPECT_TRUE(holds_token(sequence, 0, 20, 5));
}

TEST(PrefixCache, StoresOnlyTokensThatHaveKv) {
  PagePool pool = small_pool(1, 200);
  PrefixCache cache(pool);
  SequenceKv sequence(pool);
  ASSERT_TRUE(append(sequence, values_of(prompt({1, 2}))));
  cache.insert(prompt({1, 2, 3}), sequence);
  EXPECT_EQ(cache.nodes(), 2u);
  cache.clear();
  cache.insert(prompt({1}, 15), sequence);
  EXPECT_EQ(cache.nodes(), 1u);
}

TEST(PrefixCache, StopsAtTheFirstHoleOfAnyLayer) {
  PagePool pool = small_pool(3, 200);
  PrefixCache cache(pool);
  SequenceKv sequence(pool);
  const Tokens tokens = prompt({1, 2, 3, 4});
  ASSERT_TRUE(append(sequence, values_of(tokens)));
  sequence.evict(1, 32, 48);
  cache.insert(tokens, sequence);
  EXPECT_EQ(matched(cache, tokens), 32u);
}

TEST(PrefixCache, GivesUpTheLeastRecentlyUsedLeavesFirst) {
  PagePool pool = small_pool(1, 8);
  PrefixCache cache(pool);
  ASSERT_TRUE(read_prompt(cache, pool, prompt({1, 2})));
  ASSERT_TRUE(read_prompt(cache, pool, prompt({1, 3})));
  ASSERT_TRUE(read_prompt(cache, pool, prompt({4, 5})));
  EXPECT_EQ(matched(cache, prompt({1, 2})), 32u);  // now the most recent
  EXPECT_EQ(pool.free_pages(), 3u);
  EXPECT_TRUE(cache.make_room(4));
  EXPECT_EQ(cache.nodes(), 4u);
  EXPECT_TRUE(cache.make_room(4));
  EXPECT_EQ(cache.nodes(), 4u);
  EXPECT_TRUE(cache.make_room(5));
  EXPECT_TRUE(cache.make_room(6));
  // {1, 3}, then 5 below 4, then 4 went; each step took one page.
  EXPECT_EQ(cache.match(prompt({1, 2}), 32).length(), 32);
  EXPECT_EQ(cache.match(prompt({1, 3}), 32).length(), 16);
  EXPECT_EQ(cache.match(prompt({4, 5}), 32).length(), 0);
  EXPECT_FALSE(cache.make_room(9));
  EXPECT_EQ(cache.nodes(), 0u);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST(PrefixCache, KeepsPagesThatASequenceUses) {
  PagePool pool = small_pool(1, 8);
  PrefixCache cache(pool);
  ASSERT_TRUE(read_prompt(cache, pool, prompt({1, 2})));
  ASSERT_TRUE(read_prompt(cache, pool, prompt({3, 4})));
  const SequenceKv user = cache.match(prompt({1, 2}), 32);
  matched(cache, prompt({3, 4}));
  EXPECT_TRUE(cache.make_room(6));
  EXPECT_EQ(matched(cache, prompt({1, 2})), 32u);
  EXPECT_FALSE(cache.make_room(7));
  EXPECT_EQ(cache.nodes(), 2u);  // giving them up would free nothing
  expect_values(user, values_of(prompt({1, 2})));
}

TEST(PrefixCache, GivesUpUsedPagesThatStandInTheWay) {
  PagePool pool = small_pool(1, 8);
  PrefixCache cache(pool);
  const Tokens tokens = prompt({1, 2, 3, 4});
  ASSERT_TRUE(read_prompt(cache, pool, tokens));
  SequenceKv user = cache.match(tokens, 64);
  user.evict(0, 16, 32);  // only the tree still holds this page, below it pages in use
  EXPECT_EQ(pool.free_pages(), 4u);
  EXPECT_TRUE(cache.make_room(5));
  EXPECT_EQ(cache.nodes(), 1u);
  expect_values(user, values_of(tokens));
}

TEST(PrefixCache, ACollisionIsAMiss) {
  PagePool pool = small_pool(1, 400);
  const PrefixCache::HashFn same = [](std::span<const int32_t>, uint64_t) -> uint64_t { return 7; };
  PrefixCache cache(pool, same);
  ASSERT_TRUE(read_prompt(cache, pool, prompt({1, 2})));
  EXPECT_EQ(cache.nodes(), 1u);
  EXPECT_EQ(matched(cache, prompt({1, 2})), 16u);
  EXPECT_EQ(matched(cache, prompt({2})), 0u);
  EXPECT_EQ(matched(cache, prompt({1, 1})), 16u);  // the same tokens and hash under another parent
  ASSERT_TRUE(read_prompt(cache, pool, prompt({2})));
  EXPECT_EQ(cache.nodes(), 1u);
  EXPECT_EQ(pool.used_bytes(), cache.bytes());  // what cannot be found again is not kept
}

TEST(PrefixCache, ALongPromptNeedsNoRecursion) {
  PagePool pool = *PagePool::create({kernels::KvType::kBF16, 1, 2}, 1, uint64_t{1} << 30);
  PrefixCache cache(pool);
  constexpr size_t kBlocks = 100'000;
  Tokens tokens(kBlocks * kPageTokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  SequenceKv sequence(pool);
  ASSERT_TRUE(sequence.reserve(tokens.size()));
  sequence.commit(tokens.size());
  cache.insert(tokens, sequence);
  EXPECT_EQ(cache.nodes(), kBlocks);
  EXPECT_EQ(matched(cache, tokens), tokens.size());
  sequence.truncate(0);
  EXPECT_TRUE(cache.make_room(pool.limit_bytes() / pool.page_bytes() - kBlocks / 2));
  EXPECT_EQ(cache.nodes(), kBlocks / 2);
  EXPECT_EQ(matched(cache, tokens), tokens.size() / 2);
}

// Random prompts over a small alphabet, sequences held for a while, little memory: what is matched
// must always be the KV of exactly these tokens. Weak hashes make collisions common.
class PrefixCacheOfHash : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(HashBits, PrefixCacheOfHash, testing::Values(64, 4, 0));

TEST_P(PrefixCacheOfHash, RandomUseNeverGivesWrongKv) {
  const PrefixCache::HashFn hashes[] = {
      &PrefixCache::hash_tokens,
      [](std::span<const int32_t> tokens, uint64_t parent) -> uint64_t {
        return PrefixCache::hash_tokens(tokens, parent) % 16;
      },
      [](std::span<const int32_t>, uint64_t) -> uint64_t { return 0; }};
  const auto hash = hashes[GetParam() == 64 ? 0 : GetParam() == 4 ? 1 : 2];
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    PagePool pool = small_pool(2, 120);
    {
      PrefixCache cache(pool, hash);
      std::vector<SequenceKv> held;
      size_t reused = 0;
      for (int step = 0; step < 150; ++step) {
        Tokens tokens;
        for (size_t blocks = random() % 8; blocks > 0; --blocks) {
          tokens.insert(tokens.end(), kPageTokens, static_cast<int32_t>(random() % 3));
        }
        tokens.insert(tokens.end(), random() % kPageTokens, 5);
        reused += matched(cache, tokens);
        read_prompt(cache, pool, tokens);
        if (testing::Test::HasFatalFailure()) return;
        if (random() % 3 == 0) held.push_back(cache.match(tokens, tokens.size()));
        if (!held.empty() && random() % 3 == 0) held.erase(held.begin());
        if (!held.empty() && random() % 4 == 0) {
          held.back().evict(static_cast<uint32_t>(random() % 2), 0, 64);
        }
        const uint64_t wanted = random() % 60;
        if (random() % 5 == 0) {
          const bool enough = cache.make_room(wanted);
          ASSERT_EQ(enough, pool.free_pages() >= wanted);
        }
        ASSERT_LE(cache.bytes(), pool.used_bytes());
      }
      if (GetParam() == 64) {
        EXPECT_GT(reused, 1000u);
      }
    }
    ASSERT_EQ(pool.used_bytes(), 0u);
  }
}

}  // namespace
}  // namespace reprise
