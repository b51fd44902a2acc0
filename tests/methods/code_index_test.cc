#include "methods/csattention/code_index.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "methods/selecting.h"

namespace reprise {
namespace {

using kernels::KvType;
using kernels::Phase;
using testing::Toy;
using testing::ToyShape;

/// A sequence of a toy, filled by full attention, and rows with made-up queries for it.
struct Filled {
  Filled(const ToyShape& shape, size_t tokens) : toy(shape, tokens), kv(toy.new_sequence()) {
    toy.step(kv, *testing::make_policy(toy, "full"), tokens, Phase::kPrefill);
    for (size_t i = 0; i < tokens; ++i) all.push_back({0, static_cast<int32_t>(i), 0});
    q.assign(toy.q(0, 0), toy.q(0, 0) + tokens * toy.width());
  }
  QueryRows rows(size_t first, size_t end, Phase phase = Phase::kPrefill) {
    return {0,
            phase,
            std::span(all).subspan(first, end - first),
            nullptr,
            &q[first * toy.width()],
            static_cast<int32_t>(all.size()),
            &kv,
            &pool};
  }
  Toy toy;
  ThreadPool pool{2};
  SequenceKv kv;
  std::vector<Row> all;
  std::vector<float> q;  // [tokens, n_head, head_dim] rotated
};

TEST(QueryMoments, AreMeansOfProductsWhateverTheChunks) {
  Filled filled({1, 6, 2, 32}, 120);
  for (size_t i = 0; i < filled.q.size(); ++i) filled.q[i] *= i % 32 < 8 ? 3.0f : 0.5f;
  const auto parts = split_pairs(32, 4);
  QueryMoments whole(filled.toy.config(), parts), chunks(filled.toy.config(), parts);
  whole.add(filled.rows(0, 120), {20, 120});
  for (const size_t end : {30u, 31u, 120u})
    chunks.add(filled.rows(end == 30 ? 0 : end == 31 ? 30 : 31, end), {20, 120});
  const PartMetrics metrics = whole.metrics(0);
  EXPECT_EQ(metrics, chunks.metrics(0));
  ASSERT_EQ(metrics.size(), 2u * 4);
  for (size_t kv_head = 0; kv_head < 2; ++kv_head) {
    for (size_t part = 0; part < 4; ++part) {
      std::vector<double> want(64);
      for (size_t row = 20; row < 120; ++row) {
        for (size_t head = 3 * kv_head; head < 3 * kv_head + 3; ++head) {
          const float* q = &filled.q[(row * 6 + head) * 32 + part * 8];
          for (size_t i = 0; i < 64; ++i) want[i] += double{q[i / 8]} * q[i % 8];
        }
      }
      double trace = 0.0;
      for (size_t i = 0; i < 8; ++i) trace += want[9 * i];
      for (size_t i = 0; i < 64; ++i) {
        const double prior = i % 9 == 0 ? 0.01 : 0.0;
        EXPECT_NEAR(metrics[kv_head * 4 + part][i], want[i] * 8 / trace + prior, 3e-5);
      }
    }
  }
  whole.truncate(119);
  EXPECT_TRUE(whole.metrics(0).empty());
}

TEST(QueryMoments, LeaveOutWhatIsNotFinite) {
  Filled filled({1, 2, 1, 32}, 40);
  const auto parts = split_pairs(32, 4);
  QueryMoments without(filled.toy.config(), parts), with(filled.toy.config(), parts);
  without.add(filled.rows(0, 39), {0, 40});
  for (size_t i = 0; i < 64; ++i) filled.q[39 * 64 + i] = i % 2 == 0 ? NAN : INFINITY;
  with.add(filled.rows(0, 40), {0, 40});
  EXPECT_EQ(with.metrics(0), without.metrics(0));
}

TEST(CodeIndex, ErrorsOfLogitsAreSmallerThanWithPlainCodes) {
  Filled filled({1, 4, 2, 64}, 640);
  for (size_t i = 0; i < filled.q.size(); ++i) filled.q[i] *= i % 8 < 3 ? 4.0f : 0.25f;
  const KeyCodesOptions options = {8, 5, 6, 1};
  CodeIndex index(options, filled.toy.config());
  KeyCodes plain(options, filled.toy.config());
  index.take_queries(filled.rows(0, 600), {0, 600});
  index.build(filled.rows(0, 600), {0, 600});
  index.extend(filled.rows(0, 600), 600);
  plain.train(filled.rows(0, 600), 0, 600);
  plain.encode(filled.rows(0, 600), 600);
  const auto error = [&](const KeyCodes& codes) {
    double sum = 0.0;
    for (size_t row = 600; row < 640; ++row) {  // queries that shaped nothing
      const float* q = &filled.q[row * filled.toy.width()];
      std::vector<float> logits(2 * 600);
      codes.logits(0, 0, q, 0, 600, logits.data(), 600);
      for (int32_t key = 0; key < 600; ++key) {
        const auto k = testing::stored(filled.kv, 0, 0, key);
        sum += std::pow(testing::dot(q, k.data(), 64) - logits[static_cast<size_t>(key)], 2.0);
      }
    }
    return sum;
  };
  // 3 of 8 dims carry nearly all of q; 32 codes for 3 dims instead of 8 shrink errors far more.
  EXPECT_LT(error(index.codes()), 0.5 * error(plain));
}

/// Mean over rows and keys of squared logits of the errors of coded keys, one KV head and part.
double mean_error(const Filled& filled, const KeyCodes& codes, size_t first, size_t end,
                  KeyRange keys) {
  double sum = 0.0;
  for (int32_t key = keys.begin; key < keys.end; ++key) {
    auto error = testing::stored(filled.kv, 0, 0, key);
    const float* centroid =
        &codes.centroids(0, 0)[codes.code(0, 0, 0, static_cast<size_t>(key)) * error.size()];
    for (size_t d = 0; d < error.size(); ++d) error[d] -= centroid[d];
    for (size_t row = first; row < end; ++row) {
      const float* q = &filled.q[row * filled.toy.width()];
      const double length = testing::dot(q, q, 8), own = testing::dot(q, error.data(), 8);
      sum += own * own + 0.01 / 8 * length * testing::dot(error.data(), error.data(), 8);
    }
  }
  return sum / static_cast<double>(end - first) / (keys.end - keys.begin);
}

double mean_energy(const Filled& filled, size_t first, size_t end) {
  double sum = 0.0;
  for (size_t row = first; row < end; ++row) {
    const float* q = &filled.q[row * filled.toy.width()];
    sum += testing::dot(q, q, 8);
  }
  return sum / static_cast<double>(end - first);
}

TEST(CodeIndex, DriftIsHowErrorsOfLogitsGrew) {
  Filled filled({1, 1, 1, 8}, 300);  // in one part errors of dims add up
  for (size_t i = 0; i < filled.q.size(); ++i) {
    const bool turned = i / filled.toy.width() >= 200;
    filled.q[i] *= (i % 8 < 4) != turned ? 5.0f : 0.2f;
  }
  CodeIndex index({1, 4, 6, 1}, filled.toy.config());
  index.take_queries(filled.rows(0, 200), {0, 200});
  index.build(filled.rows(0, 200), {0, 200});
  index.extend(filled.rows(0, 300), 280);
  index.take_queries(filled.rows(100, 200), {100, 200});
  const float same = index.drift(filled.rows(299, 300), {10, 200});
  EXPECT_NEAR(same, 1.0f, 0.2f);
  index.forget_queries(0);
  EXPECT_EQ(index.drift(filled.rows(299, 300), {10, 280}), 1.0f);  // there are no queries
  index.take_queries(filled.rows(200, 300), {200, 300});
  const KeyCodes& codes = index.codes();
  const double expected = mean_error(filled, codes, 0, 200, {10, 200}) /
                          mean_energy(filled, 0, 200) * mean_energy(filled, 200, 300);
  const double have = mean_error(filled, codes, 200, 300, {10, 280});
  const float drift = index.drift(filled.rows(299, 300), {10, 280});
  EXPECT_NEAR(drift, have / expected, 1e-3 * drift);
  EXPECT_GT(drift, 1.5f);
}

TEST(CodeIndex, KeysAddedOneByOneGetTheSameCodes) {
  Filled filled({1, 4, 2, 64, KvType::kBF16}, 400);
  CodeIndex grown({8, 4, 4, 1}, filled.toy.config());
  grown.take_queries(filled.rows(0, 200), {0, 200});
  grown.build(filled.rows(0, 200), {0, 200});
  const auto at_once = grown.clone();
  for (int32_t end = 150; end <= 400; ++end) grown.extend(filled.rows(0, 400), end);
  at_once->extend(filled.rows(0, 400), 400);
  const auto& other = dynamic_cast<const CodeIndex&>(*at_once);
  for (size_t part = 0; part < 8; ++part) {
    for (size_t key = 0; key < 400; ++key) {
      EXPECT_EQ(grown.codes().code(0, 1, part, key), other.codes().code(0, 1, part, key));
    }
  }
}

TEST(CodeIndex, LogitsDoNotDependOnWhereCodesLie) {
  Filled filled({1, 2, 1, 32, KvType::kBF16}, 4400);
  for (const uint32_t bits : {4u, 5u}) {
    CodeIndex index({16, bits, 2, 1}, filled.toy.config());
    index.take_queries(filled.rows(0, 400), {0, 400});
    index.build(filled.rows(0, 400), {0, 400});
    KeyCodes& codes = *index.key_codes();
    const float* q = &filled.q[399 * filled.toy.width()];
    std::vector<float> want(2 * 4400), got(2 * 4400);
    for (int32_t end = 400; end <= 4400; end += 400) {
      codes.encode(filled.rows(0, 4400), end);
      const int32_t first = end == 400 ? 0 : end - 400;  // keys that are in no run yet
      codes.logits(0, 0, q, first, end, &want[static_cast<size_t>(first)], 4400);
    }
    codes.logits(0, 0, q, 0, 4400, got.data(), 4400);
    EXPECT_EQ(got, want);
    StateWriter out;
    codes.save(out);
    const std::string state = out.take();
    KeyCodes loaded({16, bits, 2, 1}, filled.toy.config());
    StateReader in(state);
    loaded.load(in, 4400);
    ASSERT_TRUE(in.ended());
    loaded.logits(0, 0, q, 0, 4400, got.data(), 4400);
    EXPECT_EQ(got, want);
    if (bits > 4) continue;
    std::vector<float> tops(2 * 275);
    KeyCodes::Lookup lookup;
    codes.prepare_lookup(0, 0, q, lookup);
    codes.page_tops(0, 0, lookup, 0, 4400, tops.data(), 275);
    for (size_t i = 0; i < tops.size(); ++i) {
      const float* page = &want[i / 275 * 4400 + i % 275 * 16];
      EXPECT_EQ(tops[i], *std::max_element(page, page + 16)) << i;
    }
  }
}

// As a device does it.
TEST(CodeIndex, CodesThatAreTakenOverGoOnAsTheOriginal) {
  Filled filled({1, 4, 2, 64, KvType::kBF16}, 600);
  for (const uint32_t bits : {3u, 4u, 5u}) {
    const KeyCodesOptions options = {32, bits, 4, 1};
    CodeIndex index(options, filled.toy.config());
    index.take_queries(filled.rows(0, 400), {0, 400});
    index.build(filled.rows(0, 400), {0, 400});
    index.extend(filled.rows(0, 400), 390);
    KeyCodes& codes = *index.key_codes();
    std::vector<float> centroids;
    for (size_t head = 0; head < 2; ++head) {
      const auto own = codes.centroids(0, head);
      centroids.insert(centroids.end(), own.begin(), own.end());
    }
    KeyCodes other(options, filled.toy.config());
    other.adopt(0, codes.trained_end(0), codes.coded(0), codes.metrics(0), centroids);
    for (size_t head = 0; head < 2; ++head) {
      for (size_t i = 0; i < 2; ++i) {
        codes.copy_block(0, head, i, other.block(0, head, i).data());
      }
    }
    codes.encode(filled.rows(0, 600), 600);
    other.encode(filled.rows(0, 600), 600);
    StateWriter want, got;
    codes.save(want);
    other.save(got);
    EXPECT_EQ(got.take(), want.take());
    std::vector<float> logits(2 * 600), others(2 * 600);
    const float* q = &filled.q[599 * filled.toy.width()];
    codes.logits(0, 1, q + 2 * 64, 0, 600, logits.data(), 600);
    other.logits(0, 1, q + 2 * 64, 0, 600, others.data(), 600);
    EXPECT_EQ(others, logits);
  }
}

}  // namespace
}  // namespace reprise
