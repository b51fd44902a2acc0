// What MAC-Attention remembers of the last positions of one layer: queries before rotation and the
// attention result over the keys that are long past.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/state_bytes.h"
#include "kernels/attention.h"
#include "model/config.h"

namespace reprise {

/// Where stored results end: the entry of position p covers keys [sink, at(p)).
struct MacCut {
  int32_t sink = 0, band = 0, align = 1;

  int32_t at(int32_t position) const {
    const int32_t past = position + 1 - band;
    return past <= 0 ? 0 : past / align * align;
  }
  /// The first position whose entry covers a key.
  int32_t first_position() const { return band - 1 + (sink / align + 1) * align; }
};

/// How a stored result of one query head came about.
struct MacState {
  float lse = -std::numeric_limits<float>::infinity();  // natural log, over the keys it covers
  float share = 1.0f;       // of its position's attention that those keys held, as far as known
  float peak = 1.0f;        // largest share of its head up to its position, fading over a window
  float drift = 0.0f;       // sum of the distances of the matches it is built on
  int32_t anchor = 0;       // position of the computed result at the start of the chain
  uint32_t depth = 0;       // matches since then
  float mean_logit = 0.0f;  // of its query with the mean key, where that is kept

  /// What its result may weigh where it is reused. Its own share says too little of a head that
  /// attends far back now and then: the position that reuses it may be one where it does.
  float weight() const { return std::sqrt(share * peak); }
};

/// A ring over positions: the entry of position p lies in slot p mod window, with p as its tag.
/// Results are in float: sums of fewer bits stop moving when a few new keys join tens of thousands.
/// q8_0 gives that up for a third of the memory: it suits results that are not built on one
/// another.
class MacRing {
 public:
  /// type: of queries and mean keys; bf16, with results in float, or q8_0 for all
  MacRing(const ModelConfig& config, uint32_t window, kernels::KvType type = kernels::KvType::kBF16,
          bool keeps_means = false);

  size_t window() const { return tags_.size(); }
  size_t slot(int32_t position) const { return static_cast<size_t>(position) % tags_.size(); }
  /// Position of the entry in a slot, -1 where there is none.
  int32_t tag(size_t slot) const { return tags_[slot]; }

  /// Writes the entry of a position over the oldest one. q: [n_head, head_dim] before rotation,
  /// out and means (see mean_keys(); unused where they are not kept): [n_head, head_dim], states:
  /// [n_head]. False, and no entry, when some number is not finite. Threads may write different
  /// slots.
  bool write(int32_t position, const float* q, const float* out, std::span<const MacState> states,
             const float* means = nullptr);
  /// Writes an entry that has no result. It waits for its neighbours, since in a tile each key
  /// touches every line: settle() comes before what reads entries.
  bool write_query(int32_t position, const float* q);
  /// Puts what waits into its place.
  void settle();
  /// Tells the entry of a position, if there is one, its results' shares of its attention, which
  /// over all keys has these log-sum-exps: [n_head]. follows: see set_peaks().
  void set_shares(int32_t position, const float* lse, bool follows);
  /// Sets the peaks of an entry by its shares and, where it follows, by the entry of the position
  /// before, if there is one.
  void set_peaks(int32_t position, bool follows = true);
  /// Forgets positions from length on.
  void truncate(int32_t length);
  /// Whether every position of [begin, end) has its entry.
  bool holds(int32_t begin, int32_t end) const;

  void save(StateWriter& out) const;
  /// Takes up what save() wrote for a ring of this size over a sequence of so many tokens, and lets
  /// in refuse anything else.
  void restore(StateReader& in, int32_t length);

  const MacState& state(size_t head, size_t slot) const { return states_[head * window() + slot]; }
  /// out: [head_dim]
  void load_out(size_t head, size_t slot, float* out) const {
    const std::byte* at = &out_[tile(results_, head, slot)];
    kernels::load_k(results_, at, slot % kernels::kPageTokens, out);
  }
  /// mean: [head_dim]
  void load_mean(size_t head, size_t slot, float* mean) const {
    const std::byte* at = &means_[tile(queries_, head, slot)];
    kernels::load_k(queries_, at, slot % kernels::kPageTokens, mean);
  }
  /// [window] squared norms of a head's stored queries.
  std::span<const float> norms2(size_t head) const {
    return std::span(norms_).subspan(head * window(), window());
  }
  /// K tiles of a head's queries in order of slots, for key_logits(); replaces pages.
  void list_tiles(size_t head, std::vector<kernels::PageSpan>& pages) const;
  const kernels::KvLayout& layout() const { return queries_; }
  /// q: [head_dim]
  void load_q(size_t head, size_t slot, float* q) const {
    kernels::load_k(queries_, &q_[tile(queries_, head, slot)], slot % kernels::kPageTokens, q);
  }

  uint64_t bytes() const;
  /// Of the queries, which a search reads.
  uint64_t query_bytes() const { return q_.size(); }
  /// Of the result of one head, its log-sum-exp included.
  uint64_t result_bytes() const {
    return results_.tile_bytes() / kernels::kPageTokens + sizeof(float);
  }

 private:
  void store_query(size_t slot, const float* q);
  size_t tile_count() const { return (window() + kernels::kPageTokens - 1) / kernels::kPageTokens; }
  size_t tile(const kernels::KvLayout& layout, size_t head, size_t slot) const {  // where it begins
    return (head * tile_count() + slot / kernels::kPageTokens) * layout.tile_bytes();
  }

  size_t n_head_, head_dim_;
  kernels::KvLayout queries_, results_;  // of the tiles
  std::vector<int32_t> tags_;            // [window]
  std::vector<std::byte> q_, out_;       // [n_head][tiles] K tiles
  std::vector<std::byte> means_;         // the same, or empty
  std::vector<float> norms_;             // [n_head][window]
  std::vector<MacState> states_;         // [n_head][window]
  std::vector<float> waiting_;           // [rows][n_head head_dim] queries, of one tile's slots
  size_t waiting_from_ = 0;              // slot of the first of them
};

}  // namespace reprise
