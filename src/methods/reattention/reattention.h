// ReAttention (arXiv 2407.15176): the first keys, spans of past keys that the rows vote for, and a
// recent window are read as if nothing lay between them, so that no position ever leaves the range
// that the model was trained on, however long the text is. Keys are stored without positions and
// nothing is evicted.
//
// Every voting row of every query head picks the keys of the middle (between the first keys and the
// window) with the largest products with its query, both before rotation. The keys with most picks
// win; each is widened to a span; all heads of a layer read the same keys. Up to `activate` tokens
// everything is read, as by full attention; a longer prompt is read by selection from `early`
// tokens on, as keys of tokens that saw a long context are worse to find things by.
//
// Decided apart from the published code: rows of prompts do not vote, and a row reads the places
// that leading heads agree on (agreement.h), or while there are none a span for each leading head,
// from which a small model retrieves better (docs/policies.md) than from as many as the trained
// context has room for; the scan is exact (see
// kernels/key_top_k.h); of equal keys the most recent one wins, or else the first occurrence of a
// word would in the first layer, whose keys know only the word; the window has a fixed size.
//
// Rows of one call share what they read, so results depend on where prompts are cut: at multiples
// of `chunk`, where a prompt begins and before each of its last `alone` rows, as a question among
// other rows would be outvoted by them.
#pragma once

#include <vector>

#include "attention/on_device.h"
#include "attention/policy.h"
#include "kernels/key_top_k.h"
#include "methods/reattention/agreement.h"
#include "methods/reattention/gate.h"
#include "methods/reattention/least_scores.h"
#include "methods/reattention/votes.h"
#include "methods/reattention/voting_heads.h"
#include "methods/reattention/watch.h"
#include "model/config.h"
#include "reprise/error.h"
#include "reprise/options.h"

namespace reprise {

struct ReAttentionOptions {
  uint32_t sink = 64;
  uint32_t local = 0;
  uint32_t span = 32;
  uint32_t spans = 0;
  uint32_t picks = 4;
  uint32_t decode_picks = 0;
  uint32_t chunk = 0;
  uint32_t alone = 48;
  uint32_t activate = 0;
  uint32_t early = 0;
  uint32_t stride = 0;
  uint32_t interval = 0;
  bool fill = false;
  bool soft = false;
  std::string score = "mean";
  float least = 0.0f;
  float lead = 0.0f;
  float gate = 0.0f;
  float agree = 0.045f;
  std::string own = "apart";
  uint32_t wide = 0;
  std::string heads = "all";
};

/// What a row reads.
template <class Visitor>
void visit_scope(ReAttentionOptions& o, Visitor& visit) {
  visit(OptionSpec{"sink", "first keys that are always read", "tokens", 0, 1 << 20}, o.sink);
  visit(OptionSpec{"local",
                   "recent keys that are always read; 0 = an eighth of what the model was trained "
                   "on, 4096 at most",
                   "tokens", 0, 1 << 24},
        o.local);
  visit(OptionSpec{"span", "keys read around a key that wins the vote", "tokens", 1, 1 << 16},
        o.span);
  visit(
      OptionSpec{
          "spans",
          "keys that win; 0 = as many as query heads, or with stride > 0 as make half of the "
          "trained context, 8192 keys at most, be read",
          "keys", 0, 1 << 20},
      o.spans);
  visit(OptionSpec{"picks", "keys that each prompt row and query head votes for", "keys", 1, 256},
        o.picks);
  visit(OptionSpec{"decode-picks",
                   "the same for a decoded token; 0 = as many as make the votes of all heads as "
                   "many as spans",
                   "keys", 0, 4096},
        o.decode_picks);
}

/// How prompts are read.
template <class Visitor>
void visit_prompts(ReAttentionOptions& o, Visitor& visit) {
  visit(OptionSpec{"chunk", "prompt rows that share what they read; 0 = 512, or local if less",
                   "tokens", 0, 1 << 20},
        o.chunk);
  visit(OptionSpec{"alone",
                   "last rows of a prompt of which each chooses its own spans, as a decoded token "
                   "does: the question, where it stands there",
                   "tokens", 0, 1 << 20},
        o.alone);
  visit(OptionSpec{"activate",
                   "up to this context everything is read; 0 = what the model was trained on",
                   "tokens", 0, 1 << 30},
        o.activate);
  visit(
      OptionSpec{"early",
                 "up to this context everything is read of a prompt that is longer than activate; "
                 "0 = a quarter of what the model was trained on",
                 "tokens", 0, 1 << 30},
      o.early);
  visit(
      OptionSpec{"stride",
                 "one prompt row of so many votes, for all that share what they read (chunk); 0 = "
                 "none but the last ones (alone), so that a prompt is read without scans, of "
                 "which answers find more",
                 "rows", 0, 1 << 16},
      o.stride);
}

/// Which keys win.
template <class Visitor>
void visit_choice(ReAttentionOptions& o, Visitor& visit) {
  visit(
      OptionSpec{
          "interval",
          "decoded tokens for which keys are scanned once, layers in turns; where heads agree and "
          "a CPU computes also a prompt's last rows, four at most; 0 = 12 there, else 1",
          "tokens", 0, 1 << 16},
      o.interval);
  visit(OptionSpec{"fill", "more keys win while their spans overlap and leave room"}, o.fill);
  visit(OptionSpec{"soft", "a row's picks of a head share one vote as softmax divides it"}, o.soft);
  visit(OptionSpec{"score",
                   "what keys are ranked by: products before rotation, or products with what "
                   "rotation leaves of a query on average over the distances of spans",
                   "", 0, 0, "raw|mean"},
        o.score);
  visit(OptionSpec{"least",
                   "a row that chooses for itself reads a span only where a head's key has this "
                   "share of the weight of the keys that are always read; 0 = the best ones, "
                   "however small",
                   "", 0, 1000},
        o.least);
  visit(
      OptionSpec{"lead",
                 "a row that chooses for itself reads spans of a head only where the logit of its "
                 "best key is by so much larger than that of its 16th best: what is looked for "
                 "stands out; 0 = 2 with agree or gate, else also where many are alike",
                 "", 0, 1000},
      o.lead);
  visit(OptionSpec{"gate",
                   "share of the voting heads whose best key must lead, on average over the last "
                   "ten rows or so, for all of them to read spans, also those that do not lead: "
                   "something is looked for; 0 = never",
                   "", 0, 1},
        o.gate);
  visit(
      OptionSpec{"agree",
                 "leading heads whose best keys must lie in one place for all layers to read it, "
                 "added up over the last ten rows or so, as a share of the voting heads, beyond 1M "
                 "tokens as many times less, to a quarter; 0 = never, and the default gives way to "
                 "gate, fill, heads, several decode-picks and spans that leave no room",
                 "", 0, 10},
      o.agree);
  visit(OptionSpec{"own",
                   "with agree, when a row reads what its own leading heads pick: always, apart = "
                   "while heads agree on nothing, or never",
                   "", 0, 0, "always|apart|never"},
        o.own);
  visit(
      OptionSpec{"wide",
                 "recent keys that a row reads of which the gate is closed, or for which no heads "
                 "agree; 0 = four times local, as far as the trained context has room for them",
                 "tokens", 0, 1 << 24},
      o.wide);
  visit(
      OptionSpec{"heads",
                 "query heads that vote, LAYER:HEAD separated by '/'; other layers read no spans, "
                 "and are not scanned; all = every head"},
      o.heads);
}

template <class Visitor>
void visit_options(ReAttentionOptions& o, Visitor&& visit) {
  visit_scope(o, visit);
  visit_prompts(o, visit);
  visit_choice(o, visit);
}

class ReAttentionPolicy : public Policy {
 public:
  /// The key that the best one must lead.
  static constexpr size_t kLeadRank = 16;

  /// Options as they apply to the model.
  struct Settings {
    int32_t sink, local, wide, span, chunk, alone, activate, early, stride, interval;
    size_t spans, picks, decode_picks;
    size_t apart_spans, agreed_spans;  // of its own picks, while heads agree on nothing, or do
    bool fill, soft;
    bool asks_for_interval;                  // of more than one token
    std::vector<std::vector<float>> angles;  // [3]: one per LayerRope, [pairs][2] of queries
    float least;
    float lead;  // as a product before scaling
    float gate;
    float agree;
    VotingHeads heads;
    // [3]: one per LayerRope, of the keys that are always read, where least > 0
    std::vector<std::shared_ptr<const NearAngles>> near;

    /// Keys that each head of a voting row picks, of so many rows that share what they read.
    size_t picks_of(size_t rows) const { return rows > 1 ? picks : decode_picks; }
    /// Keys that are looked for, so that the lead is known.
    size_t ranks_of(size_t rows) const {
      return rows > 1 || lead <= 0.0f ? picks_of(rows) : std::max(decode_picks, kLeadRank);
    }
    /// Whether a row that chooses for itself looks for spans in a layer.
    bool votes(uint32_t layer) const { return spans > 0 && heads.count(layer) > 0; }
    /// Whether rows from a position on, which share what they read, choose spans in a layer.
    bool votes(uint32_t layer, int32_t first, size_t rows) const {
      if (rows == 1 || !votes(layer)) return votes(layer);
      const int32_t end = first + static_cast<int32_t>(rows);
      return stride > 0 && (stride <= chunk || first / stride < end / stride);
    }
    /// Spans that rows win who share what they read, while heads agree or do not.
    size_t own_spans(size_t rows, bool agreed) const {
      if (rows > 1) return spans;
      return agreed ? agreed_spans : apart_spans;
    }
    /// Whether what a row reads follows from what heads of rows before found.
    bool watches() const { return gate > 0.0f || agree > 0.0f; }
    /// Spans that a row reads at most.
    size_t most_spans() const {
      return std::max(spans, agreed_spans + (agree > 0.0f ? Agreement::kRegions : 0));
    }
    /// Context up to which rows of a prompt, and those decoded after it, read everything.
    int32_t reads_all_until(int32_t prompt_end) const {
      return prompt_end > activate ? early : activate;
    }
  };

  /// Errors: kInvalidArgument where the options do not fit the model or each other.
  static Result<std::unique_ptr<Policy>> create(const ReAttentionOptions& options,
                                                const ModelConfig& config);

  std::unique_ptr<Policy> fork() const override {
    return std::make_unique<ReAttentionPolicy>(*this);
  }
  void select(const QueryRows& rows, Selection& selection) override;
  void foresee(const QueryRows& rows) override;
  int32_t reads_from(const QueryRows& rows) const override;
  void truncate(int32_t length) override;
  bool position_free() const override { return true; }
  bool unbounded() const override { return unbounded_; }
  int32_t prefill_grid() const override { return settings_.chunk; }
  int32_t prefill_cell(int32_t position, int32_t prompt_end) const override;
  bool joins_cells() const override { return !settings_.watches(); }  // else rows take turns
  std::string save_state() const override;
  Status restore_state(std::string_view state, int32_t length) override;
  void leave_alone(uint32_t layer) override;
  const Settings& settings() const { return settings_; }
  /// Heads that vote, in all layers that are asked.
  size_t voters() const;

  // Where a device computes, select() is not called: it keeps what heads found.
  using Device = OnDevice<WatchOnDevice>;
  Device& device() const { return device_; }
  /// What restore_state() read, until a device has taken it over.
  const Gate& gate() const { return gate_; }
  const Agreement& agreement() const { return agreement_; }
  PolicyStats stats() const override;
  void clear_stats() override {
    stats_ = {};
    if (device_.state != nullptr) device_.state->clear_counts();
  }
  uint64_t state_bytes() const override;

 private:
  /// What a layer's last scan found.
  struct Layer {
    std::vector<Candidate> own;
    std::vector<int32_t> voted;  // keys, of heads that led
    int32_t chosen_at = -1;      // length when a single row chose, or -1
    int32_t prompt_end = -1;     // then
  };
  /// The best keys of rows that each choose for themselves, of those that all of them see.
  struct Together {
    int32_t first = 0, end = 0;  // rows
    KeyRange keys;
    std::vector<kernels::RankedKey> best;  // [rows, n_head, ranks_of(1)]
  };
  struct Stats {
    uint64_t rows = 0, keys = 0, ranges = 0;  // of decoded rows in all layers
    uint64_t scans = 0, open = 0;             // of rows that are watched
  };

  ReAttentionPolicy(const ReAttentionOptions& options, const ModelConfig& config,
                    VotingHeads heads);
  /// Keys between sinks and window; empty where everything is read.
  KeyRange middle_of(const QueryRows& rows) const;
  bool keeps_spans(const QueryRows& rows, const Layer& layer) const;
  /// Scans keys for a layer's own spans, or has it vote as it did before.
  void look(const QueryRows& rows, KeyRange middle, Layer& layer);
  std::vector<KeyRange> spans_of(const QueryRows& rows, KeyRange middle, const Layer& layer,
                                 std::span<const int32_t> agreed) const;
  /// What the rows pick themselves, the best first.
  std::vector<Candidate> candidates(const QueryRows& rows, KeyRange middle);
  std::span<const float> angles(uint32_t layer) const;
  LayerRope rope_of(uint32_t layer) const;
  /// [n_head, ranks_of(1)] best keys of the only row.
  std::vector<kernels::RankedKey> best_of_row(const QueryRows& rows, KeyRange middle) const;
  /// [rows that vote, n_head, picks]
  std::vector<kernels::RankedKey> pick(const QueryRows& rows, KeyRange middle);
  /// Takes back picks of the only row whose keys do not weigh or lead enough.
  void drop_weak(const QueryRows& rows, KeyRange middle, std::vector<kernels::RankedKey>& best);
  /// Where the window of rows begins, behind the middle.
  int32_t recent_of(const QueryRows& rows, KeyRange middle) const;
  /// Whether how far the only row looks follows from what heads found before.
  bool is_watched(const QueryRows& rows) const;
  bool looks_far(const QueryRows& rows, KeyRange middle) const;
  /// Whether heads of the only row vote that do not lead.
  bool is_open(const QueryRows& rows) const;
  /// Pages of what earlier layers and rows agreed on, in the middle.
  std::vector<int32_t> agreed(const QueryRows& rows, KeyRange middle) const;
  const ModelConfig* config_;
  Settings settings_;
  bool unbounded_ = true;
  std::vector<Layer> layers_;
  Together together_;  // of the layer being computed
  Gate gate_;
  Agreement agreement_;
  mutable Device device_;
  Stats stats_;
};

}  // namespace reprise
