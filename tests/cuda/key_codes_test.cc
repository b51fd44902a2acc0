#include "kernels/cuda/key_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "cuda/key_codes_case.h"
#include "kernels/code_sums.h"
#include "kernels/key_tile.h"
#include "kernels/kv_page.h"
#include "methods/kmeans.h"

namespace reprise::kernels::cuda {
namespace {

constexpr CodeHeads kHeads[] = {{32, 8, 128},
                                {9, 3, 64, KvType::kFP8},
                                {2, 2, 96, KvType::kF16},
                                {16, 1, 256},
                                {16, 2, 128},
                                {12, 1, 64},
                                {8, 2, 256},
                                {10, 2, 96}};

std::string name_of(const CodeHeads& heads) {
  return std::to_string(heads.n_head) + "_" + std::to_string(heads.n_kv_head) + "_" +
         std::to_string(heads.head_dim);
}

class KeyCodes : public testing::TestWithParam<CodeHeads> {};
INSTANTIATE_TEST_SUITE_P(Heads, KeyCodes, testing::ValuesIn(kHeads),
                         [](const auto& test) { return name_of(test.param); });

double squared_distance(const float* metric, double x, double y) {
  return metric[0] * x * x + 2 * metric[1] * x * y + metric[2] * y * y;
}

// A seed that rounding moves makes another codebook, which is as good on average.
TEST_P(KeyCodes, CodebooksAreThoseOfTheCpu) {
  REPRISE_NEEDS_DEVICE();
  CodeCase c(GetParam(), 512);
  constexpr uint32_t kTokens = 500;
  c.train(c.q, kRows, kTokens);
  if (HasFatalFailure()) return;
  const auto books = c.book.host();
  const KvLayout layout = {kernels::KvType::kF32, c.heads.n_kv_head, c.heads.head_dim};
  const uint32_t pages = (kTokens + kPageTokens - 1) / kPageTokens, dim = c.heads.head_dim;
  double own_error = 0, cpu_error = 0;
  size_t equal = 0, parts = 0;
  for (uint32_t head = 0; head < c.heads.n_kv_head; ++head) {
    std::vector<std::vector<std::byte>> memory(pages, std::vector<std::byte>(layout.page_bytes()));
    std::vector<PageSpan> spans(pages);
    std::vector<float> key(dim);
    for (uint32_t token = 0; token < kTokens; ++token) {
      for (uint32_t d = 0; d < dim; ++d) key[d] = static_cast<float>(c.key(1, token, head, d));
      PageSpan& span = spans[token / kPageTokens];
      std::byte* tile = memory[token / kPageTokens].data() + layout.k_offset(0);
      store_k(layout, tile, token % kPageTokens, key.data());
      span.k = tile;
      span.slots = static_cast<uint16_t>((2u << token % kPageTokens) - 1);
    }
    for (uint32_t part = 0; part < c.shape.parts(); ++part) {
      const float* book = &books[c.part(1, head, part) * kBookPart];
      const float* metric = book + 2 * kCodeEntries;
      const std::vector<float> square = {metric[0], metric[1], metric[1], metric[2]};
      double sums[3] = {};
      for (uint32_t i = 0; i < kRows * c.group(); ++i) {
        const float x = c.query(i / c.group(), head * c.group() + i % c.group(), 2 * part);
        const float y = c.query(i / c.group(), head * c.group() + i % c.group(), 2 * part + 1);
        sums[0] += x * x;
        sums[1] += x * y;
        sums[2] += y * y;
      }
      const double trace = (sums[0] + sums[2]) / 2;
      ASSERT_NEAR(metric[0], sums[0] / trace + kMetricPrior, 1e-5);
      ASSERT_NEAR(metric[1], sums[1] / trace, 1e-5);
      ASSERT_NEAR(metric[2], sums[2] / trace + kMetricPrior, 1e-5);
      const auto pair = static_cast<uint16_t>(part);
      std::vector<float> want(kCodeEntries * dim);
      kmeans({&layout, spans, {&pair, 1}, square}, {kCodeEntries, kIterations, 1}, want.data());
      bool same = true;
      for (uint32_t i = 0; i < kCodeEntries; ++i) {
        same = same && std::abs(book[i] - want[i * dim + 2 * part]) < 1e-3f &&
               std::abs(book[kCodeEntries + i] - want[i * dim + 2 * part + 1]) < 1e-3f;
      }
      equal += same ? 1 : 0;
      ++parts;
      for (uint32_t token = 0; token < kTokens; ++token) {
        double best[2] = {INFINITY, INFINITY};
        for (uint32_t i = 0; i < kCodeEntries; ++i) {
          const double x = c.key(1, token, head, 2 * part);
          const double y = c.key(1, token, head, 2 * part + 1);
          best[0] =
              std::min(best[0], squared_distance(metric, x - book[i], y - book[kCodeEntries + i]));
          best[1] = std::min(best[1], squared_distance(metric, x - want[i * dim + 2 * part],
                                                       y - want[i * dim + 2 * part + 1]));
        }
        own_error += best[0];
        cpu_error += best[1];
      }
    }
  }
  std::printf("  equal in %zu of %zu parts, error %.4f of the CPU's\n", equal, parts,
              own_error / cpu_error);
  EXPECT_GE(static_cast<double>(equal), 0.9 * static_cast<double>(parts));
  EXPECT_NEAR(own_error, cpu_error, 0.02 * cpu_error);
}

TEST_P(KeyCodes, NameTheNearestCentroids) {
  REPRISE_NEEDS_DEVICE();
  CodeCase c(GetParam(), 700);
  c.train(c.q, kRows, 512);
  c.code(700 / kPageTokens);
  if (HasFatalFailure()) return;
  const auto books = c.book.host();
  const auto codes = c.codes.host();
  for (uint32_t row = 0; row < kRows; ++row) {
    for (uint32_t token = row; token < 700 / kPageTokens * kPageTokens; token += 7) {
      for (uint32_t head = 0; head < c.heads.n_kv_head; ++head) {
        for (uint32_t part = 0; part < c.shape.parts(); ++part) {
          const float* book = &books[c.part(row, head, part) * kBookPart];
          const uint32_t code = c.byte(codes, row, head, token, part / 2) >> 4 * (part % 2) & 15;
          const double x = c.key(row, token, head, 2 * part);
          const double y = c.key(row, token, head, 2 * part + 1);
          double own = 0, best = INFINITY;
          for (uint32_t i = 0; i < kCodeEntries; ++i) {
            const double distance =
                squared_distance(book + 2 * kCodeEntries, x - book[i], y - book[kCodeEntries + i]);
            best = std::min(best, distance);
            if (i == code) own = distance;
          }
          ASSERT_LE(own, best + 1e-5 * (1 + x * x + y * y)) << "token " << token;
        }
      }
    }
  }
  EXPECT_EQ(c.coded.host()[kLayer], static_cast<int32_t>(700 / kPageTokens));
}

/// What the CPU's kernels make of the same codes: [head] logit of a page = low + step top.
struct CpuTops {
  std::vector<float> low, step, spans;
  std::vector<uint16_t> tops;  // [group, 16 blocks]
};

CpuTops cpu_tops(const CodeCase& c, const std::vector<float>& books,
                 const std::vector<uint8_t>& codes, uint32_t row, uint32_t head, uint32_t blocks) {
  const uint32_t dim = c.heads.head_dim, parts = c.shape.parts(), group = c.group();
  std::vector<uint32_t> first_dims;
  for (uint32_t part = 0; part <= parts; ++part) first_dims.push_back(2 * part);
  std::vector<float> centroids, q;
  for (uint32_t part = 0; part < parts; ++part) {
    const float* book = &books[c.part(row, head, part) * kBookPart];
    centroids.insert(centroids.end(), book, book + 2 * kCodeEntries);
  }
  for (uint32_t i = 0; i < group * dim; ++i) {
    q.push_back(kScale * c.query(row, head * group + i / dim, i % dim));
  }
  CpuTops made;
  std::vector<uint8_t> tables(size_t{group} * parts * kCodeEntries);
  made.low.resize(group);
  made.step.resize(group);
  made.spans.resize(size_t{group} * parts);
  code_tables({parts, first_dims.data(), centroids.data(), group, q.data(), dim, tables.data(),
               made.low.data(), made.step.data(), made.spans.data()});
  std::vector<const uint8_t*> pointers;
  for (uint32_t block = 0; block < blocks; ++block) {
    const size_t at = c.block_table[row * c.block_capacity + block] * c.shape.block_bytes();
    pointers.push_back(&codes[at + (c.shape.heads(kLayer) + head) * c.shape.plane_bytes()]);
  }
  std::vector<uint16_t> used(c.shape.planes());
  std::iota(used.begin(), used.end(), uint16_t{0});
  made.tops.resize(size_t{group} * blocks * kBlockPages);
  code_page_tops({used.size(), pointers.data(), kCodeBlock, blocks, used, group, tables.data(),
                  made.tops.data(), size_t{blocks} * kBlockPages});
  return made;
}

uint32_t device_top(const CodeCase& c, const std::vector<uint2>& tops, uint32_t pair, uint32_t page,
                    uint32_t head) {
  const uint2 four =
      tops[(head / 4 * kRows * c.heads.n_kv_head + pair) * size_t{c.capacity} + page];
  const uint32_t two = head % 2 == 0 ? four.x : four.y;
  return head % 4 < 2 ? two & 0xffff : two >> 16;
}

// Entries are rounded after products that are summed up in another way.
void expect_tops_of_cpu(const CodeHeads& heads, const std::vector<int32_t>& positions) {
  const auto tokens = static_cast<uint32_t>(positions[0]) + 1;
  for (const float skip : {0.0f, 0.1f}) {
    SCOPED_TRACE("skip " + std::to_string(skip));
    CodeCase c(heads, tokens);
    c.rules.skip = skip;
    c.train(c.q, kRows, 512);
    c.code(tokens / kPageTokens);
    if (testing::Test::HasFatalFailure()) return;
    CodeSearch search(c, positions, {c.row(0), c.row(1), c.row(2)});
    search.run();
    if (testing::Test::HasFatalFailure()) return;
    const auto books = c.book.host();
    const auto codes = c.codes.host();
    const auto tops = search.tops.host();
    const auto scales = search.scales.host();
    for (uint32_t row = 0; row < kRows; ++row) {
      const auto recent = static_cast<uint32_t>(
          code_range(c.rules, kModelLayer, positions[row]).recent / kPageTokens);
      const uint32_t blocks = (recent + kBlockPages - 1) / kBlockPages;
      for (uint32_t head = 0; head < c.heads.n_kv_head; ++head) {
        const CpuTops want = cpu_tops(c, books, codes, row, head, blocks);
        double total = 0;
        for (const float span : want.spans) total += span * span;
        for (uint32_t i = 0; i < c.group(); ++i) {
          const float2 scale = scales[row * c.heads.n_head + head * c.group() + i];
          ASSERT_NEAR(scale.y, want.step[i], 1e-5f * want.step[i]);
          if (skip == 0.0f) {
            ASSERT_NEAR(scale.x, want.low[i], 1e-4f * std::abs(want.low[i]));
          }
          // Of n numbers the squares of which sum up to s, the sum is at most sqrt(n s).
          const double skipped = 0.5 * std::sqrt(c.shape.parts() * skip * total);
          const double off = 2 * want.step[i] + skipped + 1e-4 * std::abs(want.low[i]);
          for (uint32_t page = 1; page < recent; ++page) {  // the first has no say
            const uint32_t top = device_top(c, tops, row * c.heads.n_kv_head + head, page, i);
            const double logit =
                want.low[i] + want.step[i] * want.tops[i * blocks * kBlockPages + page];
            ASSERT_NEAR(scale.x + scale.y * static_cast<float>(top), logit, off)
                << "row " << row << ", head " << head << ", " << i << ", page " << page;
          }
        }
      }
    }
  }
}

TEST_P(KeyCodes, TopsAreThoseOfTheCpu) {
  REPRISE_NEEDS_DEVICE();
  expect_tops_of_cpu(GetParam(), {3000, 511, 300});
}

// Warps have rounds of 256 keys, and then 128 or 256.
TEST(KeyCodesOfLongContexts, TopsAreThoseOfTheCpu) {
  REPRISE_NEEDS_DEVICE();
  expect_tops_of_cpu({16, 16, 64}, {29999, 18000, 4000});
}

double logit_of(const CodeCase& c, uint32_t row, uint32_t head, uint32_t token) {
  double product = 0;
  for (uint32_t d = 0; d < c.heads.head_dim; ++d) {
    product += c.query(row, head, d) * c.key(row, token, head / c.group(), d);
  }
  return product * kScale;
}

/// Sums over query heads of the softmax weights of pages, as choose_coded() ranks them.
std::vector<double> page_weights(const CodeCase& c, const CodeSearch& search, uint32_t row,
                                 uint32_t head, const CodeRange& range) {
  const auto tops = search.tops.host();
  const auto scales = search.scales.host();
  const uint32_t first = static_cast<uint32_t>(c.rules.sink) / kPageTokens;
  const uint32_t recent = static_cast<uint32_t>(range.recent) / kPageTokens;
  std::vector<double> sums(recent);
  for (uint32_t i = 0; i < c.group(); ++i) {
    const uint32_t own = head * c.group() + i;
    const float2 scale = scales[row * c.heads.n_head + own];
    std::vector<double> logits;
    for (uint32_t page = first; page < recent; ++page) {
      logits.push_back(scale.x + double{scale.y} *
                                     device_top(c, tops, row * c.heads.n_kv_head + head, page, i));
    }
    for (int32_t token = 0; token < range.end; ++token) {
      if (token < c.rules.sink || token >= range.recent) {
        logits.push_back(logit_of(c, row, own, static_cast<uint32_t>(token)));
      }
    }
    const double most = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (double& logit : logits) total += logit = std::exp(logit - most);
    for (uint32_t page = first; page < recent; ++page) sums[page] += logits[page - first] / total;
  }
  return sums;
}

void expect_best_pages(CodeCase& c, const std::vector<int32_t>& positions) {
  c.rules.keep = 0.1f;
  c.rules.skip = 0.05f;
  c.train(c.q, kRows, 512);
  c.code(static_cast<uint32_t>(positions[0] + 1) / kPageTokens);
  if (testing::Test::HasFatalFailure()) return;
  CodeSearch search(c, positions, {c.row(0), c.row(1), c.row(2)});
  search.run();
  if (testing::Test::HasFatalFailure()) return;
  const auto lists = search.lists.host(), numbers = search.numbers.host();
  const auto keys = search.keys.host();
  for (uint32_t row = 0; row < kRows; ++row) {
    const CodeRange range = code_range(c.rules, kModelLayer, positions[row]);
    ASSERT_TRUE(range.chooses);
    const uint32_t sinks = static_cast<uint32_t>(c.rules.sink) / kPageTokens;
    const uint32_t recent = static_cast<uint32_t>(range.recent) / kPageTokens;
    const auto chosen = static_cast<uint32_t>(chosen_pages(c.rules, range));
    for (uint32_t head = 0; head < c.heads.n_kv_head; ++head) {
      const uint32_t pair = row * c.heads.n_kv_head + head;
      ASSERT_EQ(keys[pair], range.end - static_cast<int32_t>((recent - sinks - chosen) * 16));
      std::vector<uint32_t> pages;
      for (uint32_t i = 0; i * kPageTokens < static_cast<uint32_t>(keys[pair]); ++i) {
        pages.push_back(numbers[pair * c.capacity + i]);
        ASSERT_LT(pages.back(), c.capacity);
        ASSERT_EQ(lists[pair * c.capacity + i], c.table[row * c.capacity + pages.back()]);
      }
      ASSERT_TRUE(std::is_sorted(pages.begin(), pages.end()));
      const std::set<uint32_t> set(pages.begin(), pages.end());
      ASSERT_EQ(set.size(), pages.size());
      for (uint32_t page = 0; page < sinks; ++page) ASSERT_TRUE(set.contains(page));
      for (int32_t token = range.recent; token < range.end; token += 16) {
        ASSERT_TRUE(set.contains(static_cast<uint32_t>(token) / kPageTokens));
      }
      const auto weights = page_weights(c, search, row, head, range);
      double least = INFINITY, most = 0;
      for (uint32_t page = sinks; page < recent; ++page) {
        if (set.contains(page)) {
          least = std::min(least, weights[page]);
        } else {
          most = std::max(most, weights[page]);
        }
      }
      EXPECT_GE(least, most * (1 - 1e-3)) << "row " << row << ", head " << head;
    }
  }
  EXPECT_EQ(c.coded.host()[kLayer],
            code_range(c.rules, kModelLayer, positions[0]).recent / static_cast<int32_t>(16));
}

TEST_P(KeyCodes, ListsHaveThePagesWithTheLargestWeights) {
  REPRISE_NEEDS_DEVICE();
  CodeCase c(GetParam(), 3001);
  expect_best_pages(c, {3000, 160, 1205});
}

// More pages than shared memory has room for.
TEST(KeyCodesOfLongContexts, ListsHaveThePagesWithTheLargestWeights) {
  REPRISE_NEEDS_DEVICE();
  CodeCase c({4, 1, 64}, 133000);
  expect_best_pages(c, {132999, 131300, 1205});
}

TEST_P(KeyCodes, RowsThatDoNotChooseListEverything) {
  REPRISE_NEEDS_DEVICE();
  CodeCase c(GetParam(), 1000);
  c.rules.activate = 500;
  c.train(c.q, kRows, 512);
  c.code(1000 / kPageTokens);
  if (HasFatalFailure()) return;
  CodedRow unready = c.row(1), learning = c.row(2);
  unready.ready = kLayer;
  learning.book = nullptr;
  learning.learn_begin = kLayer;
  learning.learn_end = kLayer + 1;
  const auto before = c.moments.host();
  const std::vector<int32_t> positions = {499, 900, 700};
  CodeSearch search(c, positions, {c.row(0), unready, learning});
  search.run();
  if (HasFatalFailure()) return;
  const auto lists = search.lists.host(), numbers = search.numbers.host();
  const auto keys = search.keys.host();
  for (uint32_t pair = 0; pair < kRows * c.heads.n_kv_head; ++pair) {
    const uint32_t row = pair / c.heads.n_kv_head;
    ASSERT_EQ(keys[pair], positions[row] + 1);
    for (uint32_t page = 0; page * 16 <= static_cast<uint32_t>(positions[row]); ++page) {
      ASSERT_EQ(lists[pair * c.capacity + page], c.table[row * c.capacity + page]);
      ASSERT_EQ(numbers[pair * c.capacity + page], page);
    }
  }
  const auto after = c.moments.host();
  for (size_t i = 0; i < after.size(); ++i) {
    const size_t part = i / kMoments;
    const bool learned = part >= c.part(2, 0, 0);
    double want = before[i];
    for (uint32_t h = 0; learned && h < c.group(); ++h) {
      const auto head = static_cast<uint32_t>((part - c.part(2, 0, 0)) / c.shape.parts());
      const size_t query = head * c.group() + h, dim = part % c.shape.parts() * 2;
      const double x = c.query(2, query, dim), y = c.query(2, query, dim + 1);
      want += i % kMoments == 0 ? x * x : i % kMoments == 1 ? x * y : y * y;
    }
    ASSERT_NEAR(after[i], want, 1e-4 * (1 + std::abs(want))) << i;
  }
  CodeSearch nothing(c, {-1, 1 << 20, 0}, {c.row(0), c.row(1), c.row(2)});
  nothing.run();
  EXPECT_EQ(nothing.keys.host()[0], 0);
  EXPECT_EQ(nothing.keys.host()[c.heads.n_kv_head], 0);
  EXPECT_EQ(nothing.keys.host()[2 * c.heads.n_kv_head], 1);
}

// Codes of keys that come one by one are those of all at once.
TEST_P(KeyCodes, NewKeysAreCodedAsTheyLeaveTheWindow) {
  REPRISE_NEEDS_DEVICE();
  CodeCase c(GetParam(), 1000);
  c.train(c.q, kRows, 512);
  c.code(1000 / kPageTokens);
  if (HasFatalFailure()) return;
  const auto want = c.codes.host();
  ASSERT_EQ(cudaMemset(c.codes.get(), 0xee, want.size()), cudaSuccess);
  c.code(20);
  const DeviceArray<uint32_t> blocks(c.block_table);
  std::vector<uint32_t> tables(size_t{kModelLayer + 1} * kRows * c.capacity);
  std::copy(c.table.begin(), c.table.end(), tables.end() - static_cast<long>(c.table.size()));
  const DeviceArray<uint32_t> device_tables(tables);
  const DeviceArray<uint32_t> model_layers(std::vector<uint32_t>{0, kModelLayer});
  const std::vector<int32_t> positions = {999, 500, 100};
  const DeviceArray<int32_t> device_positions(positions);
  std::vector<CodedRow> rows = {c.row(0), c.row(1), c.row(2)};
  std::vector<int32_t> coded(size_t{kRows} * kLayers, 20);
  for (uint32_t row = 0; row < kRows; ++row) coded[row * kLayers] = 1000;  // not the layer's
  ASSERT_EQ(cudaMemcpy(c.coded.get(), coded.data(), coded.size() * 4, cudaMemcpyHostToDevice),
            cudaSuccess);
  const DeviceArray<CodedRow> device_rows(rows);
  CodeNewKeysArgs args;
  args.rows = c.rows(device_positions, device_rows, blocks);
  args.kv = c.paged();
  args.tables = device_tables.get();
  args.table_rows = kRows;
  args.model_layers = model_layers.get();
  ASSERT_EQ(code_new_keys(args, nullptr), cudaSuccess);
  const auto got = c.codes.host();
  for (uint32_t row = 0; row < kRows; ++row) {
    const CodeRange range = code_range(c.rules, kModelLayer, positions[row]);
    const uint32_t end = range.chooses ? static_cast<uint32_t>(range.recent) : 0;
    for (uint32_t token = 0; token < 992; ++token) {
      for (uint32_t plane = 0; plane < c.shape.planes(); ++plane) {
        const bool there = token < std::max(320u, end);
        ASSERT_EQ(c.byte(got, row, 0, token, plane),
                  there ? c.byte(want, row, 0, token, plane) : 0xee)
            << "row " << row << ", token " << token;
      }
    }
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda
