// MAC-Attention, "Match, Amend, Complete" (arXiv 2604.00235): a query like a recent one reuses that
// one's attention over the keys that are long past, and reads only the first keys and recent ones.
//
// Decided apart from the paper (mode=paper takes the paper's choice where there is an option):
// results are kept in float and only ever added to; the first keys, on which everything attends
// and which differ most between positions, are always read; stored results end at whole pages; a
// KV head is the unit, since its keys are read once for all of its query heads: when one of them
// finds no match, all are computed anew and their entries refreshed.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "attention/on_device.h"
#include "attention/policy.h"
#include "methods/mac/guard.h"
#include "methods/mac/match.h"
#include "methods/mac/options.h"
#include "methods/mac/ring.h"
#include "methods/mac/ring_room.h"

namespace reprise {

/// What the options amount to.
struct MacSettings {
  MacCut cut;
  int32_t window = 0, min_context = 0;
  int32_t max_age = 0, max_gap = 0;
  float distance2 = 0.0f;  // squared threshold
  float max_error = 0.0f;  // infinity: no limit
  bool reuses = true, split = false, anchored = false, guarded = true;
  bool fixes = false;  // weights of reused results follow the query
  bool in_prompts = false;
  uint64_t ring_memory = 0;  // of all sequences' rings; 0: as many as there are, see MacOptions

  /// Whether the row at a position leaves an entry.
  bool stores(int32_t position) const { return position >= first_entry(); }
  int32_t first_entry() const { return std::max(min_context - window, cut.first_position()); }
};

/// Over rows that could have reused something.
struct MacSums {
  uint64_t heads = 0, head_hits = 0, reused_heads = 0, groups = 0, group_hits = 0, steps = 0,
           off = 0;
  uint64_t nonfinite = 0;
  double keys = 0, skipped = 0, lag = 0, depth = 0, distance = 0, share = 0;

  void add(const MacSums& other);
};

/// The ring of a sequence as a device writes it to a session file.
struct MacDeviceRing {
  std::vector<int32_t> positions;  // ascending, of entries that every layer and head has
  std::vector<std::byte> bytes;    // in the device's own form
};

/// What a device keeps of a sequence in place of rings of the host; copies of the sequence share
/// it until one of them goes on.
class MacOnDevice {
 public:
  virtual ~MacOnDevice() = default;
  /// [n_layer] of the answer so far
  virtual std::vector<MacSums> sums() const = 0;
  virtual void clear_sums() = 0;
  virtual uint64_t bytes() const = 0;
  /// Of the rings of all sequences.
  virtual uint64_t all_bytes() const = 0;
  /// Rows of the answer so far that would have left entries, had there been a ring.
  virtual uint64_t ringless_rows() const = 0;
  /// See MacDeviceRing; both empty where the ring was taken away.
  virtual std::vector<int32_t> positions() const = 0;
  virtual std::vector<std::byte> fetch() const = 0;
};

/// Reuse is approximate even for equal queries, because their rotation differs. Rings hold queries,
/// which do not follow from KV: a session file keeps them. Where there is none, as after a prefix
/// that another sequence read, a prompt's last rows are computed anew to fill them.
///
/// Prompts are read as by the inner policy; their last rows fill the ring (see seed.h), unless
/// their rows reuse results, too (see prompt.cc). Steps of several decode rows go to the inner
/// policy alone.
class MacPolicy : public PolicyDecorator {
 public:
  MacPolicy(const MacOptions& options, const ModelConfig& config, std::unique_ptr<Policy> inner);

  /// kUnsupported for rings of 8 bits where heads are no whole blocks, and for options that
  /// prompt rows cannot follow.
  static Result<std::unique_ptr<Policy>> create(const MacOptions& options,
                                                const ModelConfig& config,
                                                std::unique_ptr<Policy> inner);
  /// kUnsupported for policies that give up keys, move them or bound what a prompt reads.
  static Status check_inner(const Policy& inner);

  std::unique_ptr<Policy> fork() const override;
  void select(const QueryRows& rows, Selection& selection) override;
  bool observes(uint32_t layer, kernels::Phase phase) const override {
    return settings_.reuses || PolicyDecorator::observes(layer, phase);
  }
  void observe(const QueryRows& rows, const AttentionResult& result) override;
  int32_t reads_from(const QueryRows& rows) const override;
  bool predict(const QueryRows& rows, Selection& selection) override;
  std::span<const float> supposed_errors() const override { return risks_; }
  void truncate(int32_t length) override;
  std::string save_state() const override;
  Status restore_state(std::string_view state, int32_t length) override;
  int32_t observed_prompt_rows(int32_t prompt_end, int32_t kept) const override;
  std::string prefill_key() const override;
  int32_t next_cut(int32_t position) const override;
  PolicyStats stats() const override;
  void clear_stats() override;
  uint64_t state_bytes() const override;
  /// Of the rings of all layers that are asked, on a CPU; 0 where their memory is not limited.
  uint64_t rings_bytes() const;

  // Where a device computes, select() is not called.
  using Device = OnDevice<MacOnDevice>;
  Device& device() const { return device_; }
  /// What restore_state() read of a device's ring, until one has taken it over, or null.
  const MacDeviceRing* restored() const { return restored_.get(); }
  void taken_over() const { restored_.reset(); }
  const MacSettings& settings() const { return settings_; }
  kernels::KvType ring_type() const { return ring_type_; }

 private:
  /// Steps of a KV head that could have reused something.
  struct HeadSums {
    uint64_t steps = 0, off = 0;  // off: in which it rested
    double keys = 0, skipped = 0;
  };
  struct Layer {
    std::optional<MacRing> ring;
    MacLayerGuard guard;
    MacSums sums, prompt;         // of decode rows, of prompt rows
    std::vector<uint64_t> hits;   // [n_head] of sums.head_hits
    std::vector<HeadSums> heads;  // [n_kv_head]
    uint64_t ringless = 0;  // rows that would have left entries, had there been room for a ring
    std::vector<int64_t> inner_keys;  // [n_kv_head] that the inner policy last read; or empty
    int32_t warm = 0;  // guards count from this position on: until then results are few
    std::vector<int32_t> reused_from;  // [n_head] of its last row, see MacRead::reused; or empty
  };
  /// What matches save.
  struct Saving {
    double keys = 0;
    uint64_t hits = 0, index_bytes = 0;
  };

  std::vector<Layer> new_layers() const;
  MacRing new_ring() const;
  MacRing& ring(uint32_t layer);
  /// Whether there is room for rings; else so many rows of the layer are counted.
  bool has_room(uint32_t layer, size_t rows);
  /// Whether rings have the entries of the positions [begin, end) that leave one.
  bool remembers(int32_t begin, int32_t end) const;
  bool device_remembers(int32_t begin, int32_t end) const;
  MacDeviceRing device_ring() const;
  /// Whether the prompt row at a position leaves an entry.
  bool seeds(int32_t position, int32_t prompt_end) const {
    return settings_.reuses && settings_.stores(position) &&
           (settings_.in_prompts || position >= prompt_end - settings_.window);
  }
  void seed(const QueryRows& rows);
  /// Tells entries of prompt rows what they weigh. lse: [rows, n_head] of all that the rows read.
  void weigh_seeds(const QueryRows& rows, const float* lse);
  /// Prompt rows that reuse: selection gets sinks and bands beside prefix_.
  void read_prompt(const QueryRows& rows, Selection& selection);
  /// Of rows that find no entries from `before` on; out, lse: of prefix_.
  void read_block(const QueryRows& rows, int32_t before, float* out, float* lse);
  void store_block(const QueryRows& rows, float* out, float* lse);
  QueryRows rows_of(const QueryRows& rows, size_t first, size_t count) const;
  /// Lets guards see what a prompt's last rows would have saved.
  void show_guard(const QueryRows& rows);
  /// Whether there is something that a decode row can be compared with.
  bool ready(const QueryRows& rows) const {
    return rows.first() >= settings_.min_context && layers_[rows.layer].ring;
  }
  /// Whether reuse does not pay in the layer.
  bool rests(const QueryRows& rows) const {
    return settings_.guarded && ready(rows) && !layers_[rows.layer].guard.pays();
  }
  /// A step of a layer in which reuse does not pay.
  void rest(const QueryRows& rows, Selection& selection);
  /// Chooses the KV heads that compare. layer_rests: none but those whose turn it is.
  void choose_heads(Layer& layer, bool layer_rests);
  /// Whether the inner policy is to be asked where every head reuses: what it reads is not known.
  bool wonders(const Layer& layer) const {
    return settings_.guarded && layer.inner_keys.empty() && !inner().reads_everything();
  }
  void note_inner(const QueryRows& rows, const Selection& given);
  /// Tells guards what heads that compared save by this selection. rests: or would save.
  void tell_guard(const QueryRows& rows, const Selection& selection, bool rests);
  double saved_bytes(const QueryRows& rows, const Selection& selection, size_t kv_head) const;
  double spent_bytes(const QueryRows& rows, size_t kv_head) const;
  /// Makes room for the matches of so many rows, of which nobody has one yet.
  void clear_matches(size_t rows);
  /// Fills matches_ and reused_from_ of the heads of compares_ from entries of positions before
  /// one, those that have results or all.
  void match(const QueryRows& rows, int32_t before, bool results = true);
  /// How far, for its length, a query has moved over the whole chain of its match. Times the reused
  /// share of attention it bounds the relative error of a hit, up to a factor.
  float moved(const MacState& state, const float* q, const MacMatch& match) const;
  void decide_groups();
  void take_results(const QueryRows& rows);
  /// The result that matches_[index] reuses, and states_[index] of what is built on it.
  void take_result(uint32_t layer, size_t index, float* out, float* lse);
  /// Of an entry at a position; lse: of its result.
  void finish_state(int32_t position, bool reused, float lse, MacState& state) const;
  /// Fills means_ for the entry to be written, whose results have been captured.
  void weigh_keys(const QueryRows& rows);
  /// The first key before cut that weigh_keys() reads, and the bytes of them all.
  int32_t weighed_from(size_t head, int32_t cut) const;
  uint64_t weighed_bytes(const QueryRows& rows) const;
  float mean_logit(const float* q_rotated, size_t head) const;
  Saving saving(const QueryRows& rows) const;
  void count_heads(const QueryRows& rows, Layer& layer) const;
  Saving count(const QueryRows& rows, MacSums& sums) const;
  void weigh(const QueryRows& rows, Selection& selection);
  void add_layer_figures(size_t index, const MacSums& sums, PolicyStats& stats) const;

  const ModelConfig* config_;
  size_t group_;  // query heads of a KV head
  MacSettings settings_;
  bool by_layer_;
  kernels::KvType ring_type_;
  mutable Device device_;
  mutable std::shared_ptr<const MacDeviceRing> restored_;
  MacRingRoom room_;
  uint64_t ring_bytes_ = 0;    // of a layer, where room_ is limited
  std::vector<Layer> layers_;  // [n_layer]

  // Of the step and layer being computed.
  bool writes_ = false;               // observe() stores an entry
  bool asked_inner_ = true;           // and tells the inner policy
  bool reads_all_ = true;             // which reads every key
  std::vector<uint8_t> compares_;     // [n_kv_head]
  std::vector<MacMatch> matches_;     // [rows, n_head]
  std::vector<float> risks_;          // [n_head] of hits by what they then weighed; else 0
  std::vector<int32_t> reused_from_;  // [rows, n_head] see MacRead::reused
  std::vector<MacState> states_;      // [rows, n_head] of the entries to be written
  std::vector<float> means_;          // [n_head, head_dim] its mean keys, or empty
  std::vector<MacSearch> searches_;   // [threads]
  Partial reused_, captured_;         // [1, n_head]
  Partial prefix_;                    // [rows, n_head] of prompt rows, between sinks and band
};

}  // namespace reprise
