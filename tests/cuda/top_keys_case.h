// Keys and queries of some sequences, scans of them, and what scans must find.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "base/float16.h"
#include "cuda/device_testing.h"
#include "cuda/page_testing.h"
#include "kernels/cuda/top_keys.h"

namespace reprise::kernels::cuda {

struct ScanShape {
  KvType type = KvType::kBF16;
  uint32_t dim = 64, n_head = 9, n_kv_head = 3;
};

// Which of what was found gets votes.
struct Casting {
  uint32_t each = kMaxTopKeys;
  float lead = 0.0f;
  std::vector<uint8_t> voting;  // [n_head], or empty
  float soft = 0.0f;

  using Found = std::vector<std::pair<float, int32_t>>;

  bool leads(const Found& found, uint32_t k, uint32_t head) const {
    const bool stands_out = found.size() < k || found[0].first - found[k - 1].first >= lead;
    return stands_out && (voting.empty() || voting[head] != 0);
  }
  /// Of each that was found by a head that leads.
  std::vector<uint32_t> votes(const Found& found) const {
    std::vector<uint32_t> all(std::min<size_t>(each, found.size()), 1);
    if (soft <= 0.0f) return all;
    const auto weight = [&](size_t i) {
      return std::exp((found[i].first - found[0].first) * soft);
    };
    float sum = 0.0f;
    for (size_t i = 0; i < all.size(); ++i) sum += weight(i);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<uint32_t>(std::round(kVoteParts * weight(i) / sum));
    }
    return all;
  }
};

// Sequences whose pages lie in disorder, and the queries of their last rows.
class ScanCase {
 public:
  ScanCase(const ScanShape& shape, std::vector<int32_t> lengths, uint32_t rows)
      : shape_(shape),
        lengths_(std::move(lengths)),
        rows_(rows),
        capacity_(*std::max_element(lengths_.begin(), lengths_.end()) / 16 + 2),
        tiles_(shape.type, shape.dim, lengths_.size() * capacity_ * shape.n_kv_head * 2),
        keys_(lengths_.size() * capacity_ * 16 * shape.n_kv_head * shape.dim),
        q_(lengths_.size() * rows * shape.n_head * shape.dim) {
    std::mt19937 random(shape.dim + rows);
    pages_.resize(lengths_.size() * capacity_);
    std::iota(pages_.begin(), pages_.end(), 0u);
    std::shuffle(pages_.begin(), pages_.end(), random);
    codes_ = e4m3_values();
    for (const int32_t length : lengths_) last_.push_back(length - 1);
  }

  // Values that all types have.
  void fill(const std::function<float(size_t key, uint32_t dim)>& key,
            const std::function<float(size_t row, uint32_t dim)>& query) {
    const size_t width = size_t{shape_.n_kv_head} * shape_.dim;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto dim = static_cast<uint32_t>(i % shape_.dim);
      keys_[i] = key(i / shape_.dim, dim);
      const size_t token = i / width, head = i % width / shape_.dim;
      set((pages_[token / 16] * shape_.n_kv_head + head) * 2, token % 16, dim, keys_[i]);
    }
    for (size_t i = 0; i < q_.size(); ++i) {
      q_[i] = query(i / shape_.dim, static_cast<uint32_t>(i % shape_.dim));
    }
  }

  // Arguments, and what they point to.
  struct Call {
    Call(const ScanCase& of, MiddleKeys middle, uint32_t k, uint32_t stride)
        : kv(of.tiles_.bytes()), pages(of.pages_), last(of.last_), q(of.q_) {
      const ScanShape& shape = of.shape_;
      const auto batch = static_cast<uint32_t>(of.lengths_.size());
      args.kv = {kv.get(), shape.type, shape.n_kv_head, shape.dim};
      args.pages = pages.get();
      args.positions = last.get();
      args.batch = batch;
      args.capacity = static_cast<uint32_t>(of.capacity_);
      args.rows = of.rows_;
      args.stride = stride;
      args.middle = middle;
      args.n_head = shape.n_head;
      args.q = q.get();
      args.k = k;
      const uint32_t voters = args.voters(), votes = voters * shape.n_head * k;
      const uint32_t slots = vote_slots(votes);
      found.emplace(size_t{batch} * votes);
      floors.emplace(size_t{batch} * voters * shape.n_head);
      leaders.emplace(size_t{batch} * voters * shape.n_head, 0x5a);
      workspace.emplace(top_keys_workspace(batch, voters, shape.n_head, shape.n_kv_head, k), 0x5a);
      for (auto& table : tables) table.emplace(size_t{batch} * slots);
      args.floors = floors->get();
      args.leaders = leaders->get();
      args.found = found->get();
      args.workspace = workspace->get();
      args.votes = {
          slots,           tables[0]->get(), tables[1]->get(), tables[2]->get(), tables[3]->get(),
          tables[4]->get()};
    }

    /// [voters, n_head] what queries of a sequence found, the best first.
    std::vector<std::vector<std::pair<float, int32_t>>> found_in(uint32_t sequence) const {
      const auto words = found->host();
      std::vector<std::vector<std::pair<float, int32_t>>> all(args.voters() * args.n_head);
      for (size_t i = 0; i < all.size() * args.k; ++i) {
        const RankedWord word = words[sequence * all.size() * args.k + i];
        if (word == 0) continue;
        const uint32_t bits = score_bits(word);
        float score = 0;
        std::memcpy(&score, &bits, sizeof score);
        all[i / args.k].emplace_back(score, key_of(word));
      }
      for (auto& own : all) std::sort(own.rbegin(), own.rend());
      return all;
    }
    /// Of a sequence, by key.
    std::map<int32_t, uint32_t> votes_in(uint32_t sequence) const {
      const auto keys = tables[0]->host(), votes = tables[1]->host();
      std::map<int32_t, uint32_t> all;
      for (uint32_t i = 0; i < args.votes.slots; ++i) {
        const size_t at = size_t{sequence} * args.votes.slots + i;
        if (keys[at] != 0) all[static_cast<int32_t>(keys[at]) - 1] = votes[at];
      }
      EXPECT_EQ(tables[4]->host()[sequence], all.size());
      return all;
    }

    DeviceArray<uint8_t> kv;
    DeviceArray<uint32_t> pages;
    DeviceArray<int32_t> last;
    DeviceArray<float> q;
    std::optional<DeviceArray<RankedWord>> found;
    std::optional<DeviceArray<uint8_t>> workspace;
    std::optional<DeviceArray<uint32_t>> floors, leaders;
    std::optional<DeviceArray<uint32_t>> tables[5];  // keys, votes, best, used, count
    TopKeysArgs args;
  };

  void check(MiddleKeys middle, uint32_t k, uint32_t stride = 1, const Casting& casting = {}) {
    Call call(*this, middle, k, stride);
    TopKeysArgs& args = call.args;
    const DeviceArray<uint8_t> voting(casting.voting);
    args.votes_each = casting.each;
    args.lead = casting.lead;
    args.soft = casting.soft;
    args.lead_rank = k;
    if (!casting.voting.empty()) args.voting = voting.get();
    const uint32_t batch = args.batch, voters = args.voters();
    ASSERT_EQ(top_keys(args, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (const uint32_t floor : call.floors->host()) ASSERT_EQ(floor, 0);
    for (uint32_t s = 0; s < batch; ++s) {
      const auto found = call.found_in(s);
      const bool scanned = middle_of(middle, lengths_[s] - 1, rows_).end > 0;
      std::map<int32_t, uint32_t> want_votes;
      for (uint32_t i = 0; i < voters * shape_.n_head; ++i) {
        const uint32_t row = rows_ - 1 - i / shape_.n_head * stride, head = i % shape_.n_head;
        const auto want = best_keys(s, row, head, middle, k);
        ASSERT_EQ(found[i], want) << "sequence " << s << ", row " << row << ", head " << head;
        const bool leads = casting.leads(want, k, head);
        const auto votes = leads ? casting.votes(want) : std::vector<uint32_t>();
        for (size_t j = 0; j < votes.size(); ++j) want_votes[want[j].second] += votes[j];
        const auto leader = call.leaders->host()[size_t{s} * voters * shape_.n_head + i];
        const bool found_one = leads && !want.empty();
        if (scanned) {
          ASSERT_EQ(leader, found_one ? static_cast<uint32_t>(want[0].second) + 1 : 0);
        }
      }
      const auto votes = call.votes_in(s);
      if (casting.soft <= 0.0f) {
        ASSERT_EQ(votes, want_votes) << "sequence " << s;
        continue;
      }
      ASSERT_EQ(votes.size(), want_votes.size()) << "sequence " << s;
      for (const auto& [key, parts] : want_votes) {  // exp may round otherwise there
        ASSERT_NEAR(votes.at(key), parts, 1.0 + voters * shape_.n_head * 0.1) << key;
      }
    }
  }

 private:
  void set(size_t tile, size_t token, uint32_t dim, float value) {
    const auto slot = static_cast<uint32_t>(token);
    uint8_t* start = &tiles_.bytes()[tile * tile_bytes(shape_.type, shape_.dim)];
    uint8_t* to = start + element_offset(shape_.type, shape_.dim, slot, dim);
    if (shape_.type == KvType::kFP8) {
      *to = static_cast<uint8_t>(std::find(codes_.begin(), codes_.end(), value) - codes_.begin());
      const float one = 1.0f;
      std::memcpy(start + fp8_scale_offset(shape_.dim, slot), &one, sizeof one);
      return;
    }
    const uint16_t bits = shape_.type == KvType::kBF16 ? to_bf16(value).bits : to_f16(value).bits;
    std::memcpy(to, &bits, sizeof bits);
  }

  // Largest first; products of values that are exact, in any order.
  std::vector<std::pair<float, int32_t>> best_keys(uint32_t s, uint32_t row, uint32_t head,
                                                   MiddleKeys middle, uint32_t k) const {
    const KeyRange32 keys = middle_of(middle, lengths_[s] - 1, rows_);
    const float* q = &q_[((size_t{s} * rows_ + row) * shape_.n_head + head) * shape_.dim];
    const uint32_t kv_head = head / (shape_.n_head / shape_.n_kv_head);
    std::vector<std::pair<float, int32_t>> scores;
    for (int32_t key = keys.begin; key < keys.end; ++key) {
      const size_t token = s * capacity_ * 16 + static_cast<size_t>(key);
      const float* from = &keys_[(token * shape_.n_kv_head + kv_head) * shape_.dim];
      float score = 0;
      for (uint32_t d = 0; d < shape_.dim; ++d) score += q[d] * from[d];
      if (score > -INFINITY) scores.emplace_back(score + 0.0f, key);
    }
    std::sort(scores.rbegin(), scores.rend());
    scores.resize(std::min<size_t>(scores.size(), k));
    return scores;
  }

  ScanShape shape_;
  std::vector<int32_t> lengths_, last_;
  uint32_t rows_;
  size_t capacity_;
  TestTiles tiles_;
  std::vector<float> keys_;  // [tokens of all capacities, n_kv_head, dim]
  std::vector<float> q_;     // [batch, rows, n_head, dim]
  std::vector<uint32_t> pages_;
  std::array<double, 256> codes_;
};

// Small whole numbers: sums are exact, and many scores are equal.
class Whole {
 public:
  explicit Whole(uint32_t seed, int reach = 3) : random_(seed), values_(-reach, reach) {}
  float operator()(size_t, uint32_t) { return static_cast<float>(values_(random_)); }

 private:
  std::mt19937 random_;
  std::uniform_int_distribution<int> values_;
};

}  // namespace reprise::kernels::cuda
