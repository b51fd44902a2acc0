// CSAttention (arXiv 2604.08584): an index of the keys that is shaped by the prompt's queries finds
// the keys with the largest logits; they are read exactly, with sinks and a recent window. Nothing
// is evicted.
//
// The paper clusters prompt queries in subspaces and lists, for every centroid, the keys with the
// largest partial products (mode=paper, centroid_lists.h). Its scores rank poorly on real models
// and its lists outgrow the KV, so the default keeps the idea and replaces the structure
// (code_index.h). Decided apart from the paper: a budget holds the window too; query heads of a KV
// head share a set in the default mode; an index is fitted to the tokens before a round number
// some way before the prompt's end, so that it serves every prompt that begins with them, and is
// made anew only where the context has grown much, or with drift= where it fits no longer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/on_device.h"
#include "methods/baselines/full.h"
#include "methods/csattention/centroid_lists.h"
#include "methods/csattention/key_index.h"
#include "reprise/options.h"

namespace reprise {

/// Where a search takes longer on a GPU than what it saves (an H200, 8 KV heads of 128 dims).
inline constexpr int32_t kDeviceActivate = 32768;
/// Budgets from which layers take in new keys one after another: a few more in the window are
/// little then.
inline constexpr int32_t kStaggered = 192;

struct CsAttentionOptions {
  std::string mode = "codes";
  uint32_t budget = 1024;
  std::string unit = "page";
  float keep = 0.0f;
  uint32_t sink = 16;
  uint32_t window = 128;
  uint32_t period = 1;
  float cosine = 0.8f;
  uint32_t activate = 0;
  uint32_t observe = 256;
  float index = 0.25f;
  uint32_t parts = 0;
  uint32_t bits = 4;
  float skip = 0.05f;
  uint32_t centroids = 0;
  float list = 0.25f;
  std::string weights = "unit";
  std::string absent = "none";
  bool centred = false;
  bool backoff = true;
  float drift = 0.0f;
  uint32_t iterations = 0;
  uint32_t seed = 1;
};

template <class Visitor>
void visit_options(CsAttentionOptions& o, Visitor&& visit) {
  visit(OptionSpec{"mode",
                   "codes: coded keys; table: products with query centroids; lists: of keys per "
                   "query centroid; paper: as published, that is lists with sink=0, window=32 and "
                   "none of their repairs (weights, absent, centred)",
                   "", 0, 0, "codes|table|lists|paper"},
        o.mode);
  visit(OptionSpec{"budget", "keys read per KV head", "tokens", 64, 1 << 24}, o.budget);
  visit(OptionSpec{"unit", "what is chosen; single keys with lists", "", 0, 0, "page|key"}, o.unit);
  visit(OptionSpec{"keep", "share of the keys that is read where that is more than the budget", "",
                   0, 1},
        o.keep);
  visit(OptionSpec{"sink", "first keys that are always read, part of the budget", "tokens", 0,
                   1 << 20},
        o.sink);
  visit(OptionSpec{"window", "recent keys that are always read, part of the budget", "tokens", 1,
                   1 << 20},
        o.window);
  visit(
      OptionSpec{"period", "decode steps that use one search; layers take turns", "tokens", 1, 64},
      o.period);
  visit(OptionSpec{"cosine",
                   "of a head's query and the one that was searched for; less ends a period early, "
                   "-1 = nothing does",
                   "", -1, 1},
        o.cosine);
  visit(OptionSpec{"activate",
                   "up to this context everything is read; 0 = the budget, on a GPU at least "
                   "32768, below which a search was measured not to pay for one sequence",
                   "tokens", 0, 1 << 30},
        o.activate);
  visit(OptionSpec{"observe", "last prompt rows whose queries shape the index; 0 = all", "tokens",
                   0, 1 << 24},
        o.observe);
  visit(
      OptionSpec{"index",
                 "largest index as a share of KV in bf16, without its codebooks, a few hundred KB "
                 "to some MB whatever the context; lists have their own size: those of more than "
                 "1 and more than this are refused",
                 "", 0.01, 64},
      o.index);
  visit(OptionSpec{"parts",
                   "parts of a head's dimensions, each with a code, table or lists of its own; 0 = "
                   "half of the dimensions for codes, else 8",
                   "", 0, 64},
        o.parts);
  visit(OptionSpec{"bits", "of a code; up to 4, two share a byte", "bits", 1, 8}, o.bits);
  visit(
      OptionSpec{"skip",
                 "share of the squared spans of a query's products with its parts whose codes are "
                 "not read, with codes of up to 4 bits",
                 "", 0, 1},
      o.skip);
  visit(OptionSpec{"centroids",
                   "query centroids of a part; 0 = a quarter of the dimensions of a head in table "
                   "mode, 128 with lists",
                   "", 0, 4096},
        o.centroids);
  visit(OptionSpec{"list", "share of the keys that a centroid lists", "", 0, 1}, o.list);
  visit(OptionSpec{"weights", "of the parts of a query, with lists: all alike, or their lengths",
                   "", 0, 0, "unit|norm"},
        o.weights);
  visit(OptionSpec{"absent",
                   "score of a key that a list lacks: none, or the mean of all that it lacks, so "
                   "that keys in no list can be found",
                   "", 0, 0, "none|mean"},
        o.absent);
  visit(OptionSpec{"centred", "lists have the scores of keys less the mean key"}, o.centred);
  visit(OptionSpec{"backoff", "two centroids for queries that have drifted, with lists"},
        o.backoff);
  visit(OptionSpec{"drift",
                   "times by which the mean squared error of logits may grow, for the queries of "
                   "128 decoded tokens and the keys by then, before a layer's codes are made "
                   "anew; 0 = only a grown context is a reason (CPU)",
                   "", 0, 1000},
        o.drift);
  visit(OptionSpec{"iterations", "of k-means; 0 = 4 for codes, else 10", "", 0, 1000},
        o.iterations);
  visit(OptionSpec{"seed", "of k-means"}, o.seed);
}

/// Whether the index is lists of keys: mode=lists and mode=paper.
bool has_lists(const CsAttentionOptions& options);
/// What those are made by.
CentroidListsOptions lists_options(const CsAttentionOptions& options);

/// What a device keeps of a sequence in place of an index of the host; copies of the sequence share
/// it until one of them goes on.
class CsAttentionOnDevice {
 public:
  virtual ~CsAttentionOnDevice() = default;
  /// As KeyIndex.
  virtual int32_t built_end(uint32_t layer) const = 0;
  /// End of the tokens without which the layer's index is gone.
  virtual int32_t needs_until(uint32_t layer) const { return built_end(layer); }
  virtual uint64_t bytes() const = 0;
  /// Copies it to the host's form, which is empty before.
  virtual Status fetch(KeyCodes& codes) const = 0;
};

class CsAttentionPolicy : public Policy {
 public:
  CsAttentionPolicy(const CsAttentionOptions& options, const ModelConfig& config);
  /// kInvalidArgument for lists that are larger than what they index, unless the options say so.
  static Result<std::unique_ptr<Policy>> create(const CsAttentionOptions& options,
                                                const ModelConfig& config);

  std::unique_ptr<Policy> fork() const override {
    return std::make_unique<CsAttentionPolicy>(*this);
  }
  void select(const QueryRows& rows, Selection& selection) override;
  int32_t reads_from(const QueryRows& rows) const override;
  int32_t reads_before(const QueryRows& rows) const override;
  bool predict(const QueryRows& rows, Selection& selection) override;
  void truncate(int32_t length) override;
  std::string prefill_key() const override { return std::string(kDensePrefill); }
  int32_t observed_prompt_rows(int32_t prompt_end, int32_t kept) const override;
  int32_t shared_length(int32_t prompt_end) const override;
  /// "index_share": of the index and the KV it is of; "build_ms", what the prompt's index took, and
  /// "update_us_p50" and "update_us_p99", what taking in new keys took in a decode step, all layers
  /// together; and the index's own.
  PolicyStats stats() const override;
  void clear_stats() override;
  uint64_t state_bytes() const override;
  std::string save_state() const override;
  Status restore_state(std::string_view state, int32_t length) override;

  // Where a device computes, select() is not called: it keeps the index, by the same rules.
  struct Device : OnDevice<CsAttentionOnDevice> {
    uint64_t fallbacks = 0;  // times that there was no room for an index
  };
  Device& device() const { return device_; }
  /// What restore_state() read, until a device has taken it over; null: there is nothing.
  const KeyCodes* restored() const {
    return device_.state == nullptr && has_index() ? index_->key_codes() : nullptr;
  }
  void taken_over() const { index_->truncate(0); }
  std::vector<const Policy*> acting() const override { return {this, full_.get()}; }
  DeviceStep begin_device_step(int32_t position) override;
  const CsAttentionOptions& options() const { return options_; }
  int32_t sink() const { return sink_; }
  int32_t window() const { return window_; }
  /// Decode rows that one search serves at most.
  int32_t period() const { return period_; }
  int32_t activate_on_device() const { return activate_ > 0 ? activate_ : kDeviceActivate; }
  int32_t budget_at(int32_t end) const;
  /// Whole pages before this one are in the index of a layer.
  int32_t recent_end(uint32_t layer, int32_t end) const;
  /// Whether the rows before end deserve an index of their own.
  bool wants_index(uint32_t layer, int32_t end) const;
  /// Decode rows from so many tokens before the end of an index's keys on shape it.
  int32_t decode_rows_observed() const;
  /// Rows of a prompt whose queries shape its index, up to the end of the keys that do.
  QueryWindow observed(int32_t prompt_end) const;

 private:
  struct Search {     // the last one of a layer
    int32_t end = 0;  // of the keys its row saw; 0 = none
    int32_t recent = 0;
    std::vector<float> q;  // [n_head, head_dim]
    KeyPicks picks;
  };

  struct Times {
    double build_ms = 0.0;
    std::vector<float> update_us;  // of every decode step
    int32_t last_end = 0;          // of the last decode step's rows
  };

  struct Drift {  // of all layers
    uint64_t measured = 0, rebuilt = 0;
    double sum = 0.0, most = 0.0;
  };

  int32_t built_end(uint32_t layer) const;
  bool has_index() const;
  /// Whether select() makes an index of the rows' layer.
  bool builds(const QueryRows& rows) const;
  bool reads_all(uint32_t layer, int32_t end) const;
  /// Takes what the rows tell of queries and, at a prompt's end, makes the index.
  void learn(const QueryRows& rows);
  /// Makes the index of the rows' layer, to which they are the last ones to contribute.
  void build(const QueryRows& rows, int32_t keys_end);
  /// Blocks of decode rows tell whether an index still fits them; one that does not is made anew.
  void watch(const QueryRows& rows);
  bool watches(const QueryRows& rows) const;
  bool ends_watch(const QueryRows& rows) const;
  void extend(const QueryRows& rows, int32_t end);
  /// Units that a search is for.
  size_t wanted(const QueryRows& rows) const;
  void list(const KeyPicks& picks, KeyRange recent, Selection& selection) const;
  bool is_turn_of(const Search& search, const QueryRows& rows) const;
  bool still_holds(const Search& search, const QueryRows& rows) const;
  void remember(const QueryRows& rows, int32_t recent, Search& search) const;

  const ModelConfig* config_;
  CsAttentionOptions options_;
  int32_t budget_, sink_, window_, period_, observe_, activate_;
  float keep_;
  mutable IndexOwner index_;
  std::vector<Search> searches_;  // [n_layer]
  int32_t end_ = 0;               // of the last rows
  Times times_;
  Drift drift_;
  mutable Device device_;
  std::shared_ptr<FullPolicy> full_;  // acts on a device where everything is read
};

}  // namespace reprise
