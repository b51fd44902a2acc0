#include "kernels/cuda/key_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "methods/reattention/votes.h"

namespace reprise::kernels::cuda {
namespace {

struct Setting {
  MiddleKeys middle;
  uint32_t spans = 7, span = 6;
  int32_t wide = 0;  // > 0: of sequences that are not open
  bool fill = false;
};

uint32_t order_of(float score) {
  uint32_t bits = 0;
  std::memcpy(&bits, &score, sizeof bits);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// Candidates as they lie in a table, in slots that stand for themselves.
class Votes {
 public:
  Votes(uint32_t batch, uint32_t slots)
      : slots_(slots),
        keys_(batch * slots),
        votes_(batch * slots),
        best_(batch * slots),
        used_(batch * slots),
        count_(batch) {}

  void add(uint32_t sequence, const Candidate& candidate) {
    const uint32_t slot = count_[sequence] * 7 % slots_;  // of a power of two
    const size_t at = size_t{sequence} * slots_ + slot;
    used_[size_t{sequence} * slots_ + count_[sequence]++] = slot;
    keys_[at] = static_cast<uint32_t>(candidate.key) + 1;
    votes_[at] = candidate.votes;
    best_[at] = order_of(candidate.score);
  }

  uint32_t slots_;
  std::vector<uint32_t> keys_, votes_, best_, used_, count_;
};

// The best candidates by the rule of the CPU.
std::vector<KeyRange> ranges_of(const std::vector<Candidate>& candidates, const Setting& setting,
                                int32_t length, uint32_t rows, bool open) {
  const KeyRange32 middle = middle_of(setting.middle, length - 1, rows);
  if (middle.begin >= middle.end) return {{0, length}};
  std::vector<kernels::RankedKey> picks;
  for (const Candidate& candidate : candidates) {
    for (uint32_t i = 0; i < candidate.votes; ++i)
      picks.push_back({candidate.score, candidate.key});
  }
  const auto ranked = count_votes(picks);
  std::vector<KeyRange> ranges = {{0, middle.begin}};
  const auto span = static_cast<int32_t>(setting.span);
  const KeyRange within = {middle.begin, middle.end};
  const auto winners = std::span(ranked).first(std::min<size_t>(setting.spans, ranked.size()));
  for (const KeyRange& each :
       setting.fill ? fill(ranked, setting.spans, int64_t{setting.spans} * span, span, within)
                    : cover(winners, span, within)) {
    ranges.push_back(each);
  }
  int32_t recent = middle.end;
  if (!open) recent = std::clamp(length - setting.wide, middle.begin, middle.end);
  for (KeyRange& range : ranges)
    range = {std::min(range.begin, recent), std::min(range.end, recent)};
  ranges.push_back({recent, length});
  return ranges;
}

struct Row {
  int32_t length = 0;
  std::vector<Candidate> candidates;
  bool open = true;
};

// Keys that rows of a sequence read, in order.
std::vector<int32_t> keys_of(const Setting& setting, const Row& sequence, uint32_t rows) {
  std::vector<int32_t> keys;
  for (const KeyRange& range :
       ranges_of(sequence.candidates, setting, sequence.length, rows, sequence.open)) {
    for (int32_t key = range.begin; key < range.end; ++key) keys.push_back(key);
  }
  return keys;
}

// A list of pages on the device and the page table of its sequence.
struct PageList {
  std::span<const uint32_t> pages, angles, table;
  std::span<const uint16_t> slots;
};

// Every key once, in order, where its page and its row of angles say.
void check_list(const PageList& list, const std::vector<int32_t>& want) {
  size_t next = 0;
  for (size_t i = 0; i < list.pages.size(); ++i) {
    ASSERT_NE(list.slots[i], 0);
    for (uint32_t token = 0; token < kPageTokens; ++token) {
      if ((list.slots[i] >> token & 1) == 0) continue;
      ASSERT_LT(next, want.size());
      const auto key = static_cast<uint32_t>(want[next]);
      ASSERT_EQ(token, key % kPageTokens);
      ASSERT_EQ(list.pages[i], list.table[key / kPageTokens]);
      ASSERT_EQ(list.angles[i] + token, next + kPageTokens - 1);
      ++next;
    }
  }
  ASSERT_EQ(next, want.size());
}

// The inputs of a call, and room for what it makes.
class SpansCall {
 public:
  SpansCall(const Setting& setting, const std::vector<Row>& sequences, uint32_t rows)
      : setting_(setting),
        sequences_(sequences),
        rows_(rows),
        batch_(static_cast<uint32_t>(sequences.size())),
        longest_(std::ranges::max(sequences, {}, &Row::length).length),
        capacity_(static_cast<uint32_t>(longest_) / kPageTokens + 1),
        list_capacity_(span_list_capacity(widest(setting), setting.spans, setting.span,
                                          setting.fill, capacity_)),
        token_capacity_(std::max(span_tokens(widest(setting), setting.spans, setting.span),
                                 static_cast<uint32_t>(longest_))),
        votes_(votes_of(sequences)),
        table_(page_table(batch_ * capacity_)) {}

  void check() const {
    ASSERT_EQ(run(), cudaSuccess);
    const auto read = read_.host(), list_keys = list_keys_.host(), tokens = tokens_.host();
    const auto pages = list_pages_.host(), angles = list_angles_.host();
    const auto slots = slots_.host();
    const auto prefill = prefill_.host();
    for (uint32_t s = 0; s < batch_; ++s) {
      const std::vector<int32_t> want = keys_of(setting_, sequences_[s], rows_);
      ASSERT_EQ(read[s], static_cast<int32_t>(want.size())) << s;
      const auto* from = &tokens[size_t{s} * token_capacity_];
      ASSERT_EQ(std::vector<int32_t>(from, from + want.size()), want) << s;
      EXPECT_EQ(prefill[s].first, 0);
      EXPECT_EQ(prefill[s].count, rows_);
      EXPECT_EQ(prefill[s].position, static_cast<int32_t>(want.size() - rows_));
      ASSERT_LE(list_keys[s], static_cast<int32_t>(list_capacity_ * kPageTokens));
      const size_t at = size_t{s} * list_capacity_,
                   count = static_cast<size_t>(list_keys[s]) / kPageTokens;
      check_list({std::span(pages).subspan(at, count), std::span(angles).subspan(at, count),
                  std::span(table_).subspan(size_t{s} * capacity_, capacity_),
                  std::span(slots).subspan(at, count)},
                 want);
      if (testing::Test::HasFatalFailure()) return;
    }
    for (const auto* array : {&keys_, &counts_, &best_, &count_}) {
      for (const uint32_t left : array->host()) ASSERT_EQ(left, 0);
    }
  }

 private:
  static MiddleKeys widest(const Setting& setting) {
    MiddleKeys middle = setting.middle;
    middle.local = std::max(middle.local, setting.wide);
    return middle;
  }
  static Votes votes_of(const std::vector<Row>& sequences) {
    uint32_t most = 1;
    for (const Row& sequence : sequences) {
      most = std::max(most, static_cast<uint32_t>(sequence.candidates.size()));
    }
    Votes votes(static_cast<uint32_t>(sequences.size()), vote_slots(most));
    for (uint32_t s = 0; s < sequences.size(); ++s) {
      for (const Candidate& candidate : sequences[s].candidates) votes.add(s, candidate);
    }
    return votes;
  }
  static std::vector<uint32_t> page_table(uint32_t size) {
    std::vector<uint32_t> table(size);
    for (uint32_t i = 0; i < size; ++i) table[i] = 10000 - i * 3;
    return table;
  }
  static std::vector<int32_t> positions(const std::vector<Row>& sequences) {
    std::vector<int32_t> last;
    for (const Row& sequence : sequences) last.push_back(sequence.length - 1);
    return last;
  }

  cudaError_t run() const {
    KeySpansArgs args;
    args.votes = {votes_.slots_, keys_.get(), counts_.get(),
                  best_.get(),   used_.get(), count_.get()};
    args.positions = last_.get();
    args.batch = batch_;
    args.rows = rows_;
    args.middle = setting_.middle;
    args.spans = setting_.spans;
    args.span = setting_.span;
    args.fill = setting_.fill;
    args.keys = read_.get();
    args.pages = pages_.get();
    args.capacity = capacity_;
    args.list_pages = list_pages_.get();
    args.list_slots = slots_.get();
    args.list_angles = list_angles_.get();
    args.list_keys = list_keys_.get();
    args.list_capacity = list_capacity_;
    args.tokens = tokens_.get();
    args.token_capacity = token_capacity_;
    args.prefill = prefill_.get();
    std::vector<RowEvidence> evidence(2);
    evidence[1].past = 5.0f;
    const DeviceArray<RowEvidence> kept(evidence);
    std::vector<RowEvidence*> states;
    for (const Row& sequence : sequences_) states.push_back(kept.get() + (sequence.open ? 1 : 0));
    const DeviceArray<RowEvidence*> device_states(states);
    if (setting_.wide > 0) args.evidence = {device_states.get(), 1, 5.0f};
    args.wide = setting_.wide;
    const cudaError_t status = key_spans(args, nullptr);
    return status == cudaSuccess ? cudaDeviceSynchronize() : status;  // before evidence goes
  }

  const Setting& setting_;
  const std::vector<Row>& sequences_;
  const uint32_t rows_, batch_;
  const int32_t longest_;
  const uint32_t capacity_, list_capacity_, token_capacity_;
  const Votes votes_;
  const std::vector<uint32_t> table_;
  const DeviceArray<uint32_t> keys_{votes_.keys_}, counts_{votes_.votes_}, best_{votes_.best_},
      used_{votes_.used_}, count_{votes_.count_}, pages_{table_},
      list_pages_{size_t{batch_} * list_capacity_}, list_angles_{size_t{batch_} * list_capacity_};
  const DeviceArray<uint16_t> slots_{size_t{batch_} * list_capacity_};
  const DeviceArray<int32_t> last_{positions(sequences_)}, read_{batch_}, list_keys_{batch_},
      tokens_{size_t{batch_} * token_capacity_};
  const DeviceArray<PrefillRows> prefill_{batch_};
};

void check(const Setting& setting, const std::vector<Row>& sequences, uint32_t rows) {
  SpansCall(setting, sequences, rows).check();
}

std::vector<Candidate> candidates(std::mt19937& random, size_t count, KeyRange32 within,
                                  uint32_t most_votes, int scores) {
  std::vector<int32_t> keys;
  for (int32_t key = within.begin; key < within.end; ++key) keys.push_back(key);
  std::shuffle(keys.begin(), keys.end(), random);
  keys.resize(std::min(keys.size(), count));
  std::vector<Candidate> made;
  for (const int32_t key : keys) {
    const auto score = static_cast<float>(static_cast<int>(random() % 1000) % scores) - 2.5f;
    made.push_back({key, 1 + static_cast<uint32_t>(random()) % most_votes, score});
  }
  return made;
}

TEST(KeySpans, AreThoseOfTheCpu) {
  REPRISE_NEEDS_DEVICE();
  std::mt19937 random(3);
  for (const uint32_t spans : {0u, 1u, 7u, 95u, kMaxSpans}) {
    for (const uint32_t span : {1u, 5u, 6u, 32u, 100u}) {
      for (const int32_t sink : {0, 5, 32}) {
        for (const uint32_t rows : {1u, 30u}) {
          SCOPED_TRACE(std::to_string(spans) + " spans of " + std::to_string(span) + ", sink " +
                       std::to_string(sink));
          const Setting setting = {{sink, 40, 60}, spans, span};
          std::vector<Row> sequences;
          for (const int32_t length : {60, 61, 77, 400, 3000}) {
            const KeyRange32 middle = middle_of(setting.middle, length - 1, rows);
            for (const size_t count : {size_t{0}, size_t{3}, size_t{400}}) {
              for (const int scores : {1, 9}) {
                auto made = candidates(random, count, middle, scores == 1 ? 1 : 300, scores);
                if (middle.begin >= middle.end) made.clear();
                sequences.push_back({length, std::move(made)});
              }
            }
          }
          check(setting, sequences, rows);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(KeySpans, RowsThatAreNotOpenReadMoreRecentKeys) {
  REPRISE_NEEDS_DEVICE();
  std::mt19937 random(5);
  for (const int32_t wide : {1, 41, 90, 1000, 5000}) {
    SCOPED_TRACE(wide);
    const Setting setting = {{5, 40, 60}, 20, 6, wide};
    std::vector<Row> sequences;
    for (const int32_t length : {60, 61, 150, 1100, 3000}) {
      const KeyRange32 middle = middle_of(setting.middle, length - 1, 1);
      for (const bool open : {true, false}) {
        auto made = candidates(random, 60, middle, 9, 300);
        if (middle.begin >= middle.end) made.clear();
        sequences.push_back({length, std::move(made), open});
      }
    }
    check(setting, sequences, 1);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Candidates that lie together, apart, at the ends of the middle, and more of them than fit.
TEST(KeySpans, FillWhatTheyMayAsOnTheCpu) {
  REPRISE_NEEDS_DEVICE();
  std::mt19937 random(6);
  for (const auto& [spans, span] : {std::pair{0u, 5u},
                                    {1u, 1u},
                                    {7u, 6u},
                                    {20u, 32u},
                                    {95u, 32u},
                                    {3u, 1000u},
                                    {1000u, 4u},
                                    {128u, 32u}}) {
    for (const uint32_t rows : {1u, 30u}) {
      SCOPED_TRACE(std::to_string(spans) + " spans of " + std::to_string(span));
      const Setting setting = {{5, 40, 60}, spans, span, 0, true};
      std::vector<Row> sequences;
      for (const int32_t length : {61, 400, 3000, 30000}) {
        const KeyRange32 middle = middle_of(setting.middle, length - 1, rows);
        for (const size_t count : {size_t{0}, size_t{3}, size_t{90}, size_t{700}, size_t{9000}}) {
          for (const int scores : {1, 9, 1000}) {
            auto made = candidates(random, count, middle, scores == 9 ? 300 : 2, scores);
            if (middle.begin >= middle.end) made.clear();
            sequences.push_back({length, std::move(made)});
          }
        }
      }
      check(setting, sequences, rows);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(KeySpans, MoreThanMayBeFilledIsRefused) {
  KeySpansArgs args;
  args.batch = 1;
  args.spans = 1000;
  args.span = 5;
  args.fill = true;
  EXPECT_EQ(key_spans(args, nullptr), cudaErrorNotSupported);
}

TEST(KeySpans, ManyCandidates) {
  REPRISE_NEEDS_DEVICE();
  std::mt19937 random(4);
  const Setting setting = {{32, 1024, 8192}, 95, 32};
  std::vector<Row> sequences;
  for (const uint32_t votes : {1u, 3u, 70000u}) {
    sequences.push_back({60000, candidates(random, 20000, {32, 50000}, votes, 1000)});
    if (votes > 3) sequences.back().candidates.resize(300);
  }
  check(setting, sequences, 512);
}

TEST(PackedQueries, StandAtTheLastOfTheKeys) {
  REPRISE_NEEDS_DEVICE();
  constexpr uint32_t kRows = 3, kHeads = 2, kDim = 64, kPairs = 20, kReach = 50;
  std::vector<float> table, plain(2 * kRows * kHeads * kDim);
  const auto angle = [](int32_t position, uint32_t pair) { return position * std::pow(0.8, pair); };
  for (int32_t position = 1 - static_cast<int32_t>(kPageTokens); position < int32_t{kReach};
       ++position) {
    for (uint32_t pair = 0; pair < kPairs; ++pair) {
      table.push_back(static_cast<float>(std::cos(angle(position, pair))));
      table.push_back(static_cast<float>(std::sin(angle(position, pair))));
    }
  }
  std::mt19937 random(1);
  for (float& x : plain) x = std::normal_distribution<float>()(random);
  const DeviceArray<float> q(plain), angles(table);
  const std::vector<int32_t> lengths = {3, 50};
  const DeviceArray<int32_t> keys(lengths);
  const DeviceArray<__nv_bfloat16> out(plain.size());
  const DeviceArray<float> exact(plain.size());
  PackedQueriesArgs args = {
      q.get(), 2,         kRows,      kHeads, kDim, keys.get(), {angles.get(), kPairs},
      0.5f,    out.get(), exact.get()};
  ASSERT_EQ(rotate_packed_queries(args, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto got = out.host();
  const auto got_exact = exact.host();
  for (size_t i = 0; i < plain.size(); ++i) {
    const auto dim = static_cast<uint32_t>(i % kDim);
    const size_t row = i / kDim / kHeads, sequence = row / kRows;
    double want = plain[i];
    if (dim / 2 < kPairs) {
      const int32_t position =
          lengths[sequence] - int32_t{kRows} + static_cast<int32_t>(row % kRows);
      const double turn = angle(position, dim / 2), other = plain[i ^ 1];
      want = want * std::cos(turn) + (dim % 2 == 0 ? -other : other) * std::sin(turn);
    }
    want *= 0.5;
    uint16_t bits = 0;
    std::memcpy(&bits, &got[i], sizeof bits);
    ASSERT_NEAR(got_exact[i], want, 1e-5) << i;
    ASSERT_NEAR(to_float(Bf16{bits}), want, 0x1p-8 * std::fabs(want) + 1e-5) << i;
  }
}

}  // namespace
}  // namespace reprise::kernels::cuda
