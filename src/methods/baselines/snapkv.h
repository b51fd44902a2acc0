// SnapKV (Li et al. 2024): the last rows of a prompt vote once for the prompt tokens that stay.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "methods/baselines/evicting.h"
#include "reprise/options.h"

namespace reprise {

struct SnapKvOptions {
  uint32_t budget = 1024;
  uint32_t window = 64;
  uint32_t kernel = 7;
  std::string pool = "max";
  std::string group = "mean";
  std::string voters = "window";
};

template <class Visitor>
void visit_options(SnapKvOptions& o, Visitor&& visit) {
  visit(OptionSpec{"budget", "prompt tokens kept per KV head, the window included", "tokens", 1,
                   1 << 24},
        o.budget);
  visit(OptionSpec{"window", "last prompt rows, which vote and are kept", "tokens", 1, 1 << 16},
        o.window);
  visit(OptionSpec{"kernel", "neighbouring tokens whose votes are pooled", "tokens", 1, 255},
        o.kernel);
  visit(OptionSpec{"pool", "how they are pooled", "", 0, 0, "max|avg"}, o.pool);
  visit(OptionSpec{"group", "how the query heads of a KV head are joined", "", 0, 0, "mean|max"},
        o.group);
  visit(OptionSpec{"voters",
                   "question: behind stored documents all rows of the question are the window, up "
                   "to half of the budget, and what stands before the documents is kept, too",
                   "", 0, 0, "window|question"},
        o.voters);
}

/// Score of every key of one KV head. votes: [heads of the group][keys], sums of probabilities.
/// Pooled over the keys (beyond the edges stands zero, and avg divides by kernel, as the authors
/// do), then joined over the heads.
std::vector<float> snapkv_scores(const SnapKvOptions& options,
                                 std::span<const std::vector<float>> votes);

/// The prompt is read densely. In the select() of its last row every layer chooses what to keep of
/// it; the choice is carried out before the next rows are computed, and everything generated is
/// kept. A later prompt of a conversation is compressed together with what was kept before: at most
/// budget tokens of all that precedes the answer stay, chosen by the new prompt's own last rows.
class SnapKvPolicy : public EvictingPolicy {
 public:
  SnapKvPolicy(const SnapKvOptions& options, const ModelConfig& config);

  const SnapKvOptions& options() const { return options_; }
  /// Last rows of a prompt that vote and are kept.
  int32_t window(int32_t prompt_end) const;
  /// Keys before this one are kept whatever the votes.
  int32_t always() const { return by_question() ? documents_.begin : 0; }

  std::unique_ptr<Policy> fork() const override { return std::make_unique<SnapKvPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  void truncate(int32_t length) override;
  void set_documents(int32_t begin, int32_t end) override { documents_ = {begin, end}; }
  int32_t observed_prompt_rows(int32_t prompt_end, int32_t kept) const override {
    return kept < documents_.end ? window_ : window(prompt_end);
  }
  uint64_t state_bytes() const override;

 private:
  struct Layer {
    std::vector<float> q;  // [rows][n_head, head_dim] rotated: last rows of the prompt so far
    int32_t q_end = 0;     // position after the last of them
    /// [n_kv_head][budget] kept keys, ascending, to be carried out; or empty
    std::vector<std::vector<int32_t>> keep;
    int32_t keep_end = 0;  // tokens of the prompt that they were chosen from
  };

  /// Whether the rows behind documents vote.
  bool by_question() const { return documents_.end > 0 && options_.voters == "question"; }
  void collect_queries(const QueryRows& rows, Layer& layer) const;
  void choose(const QueryRows& rows, Layer& layer) const;
  void compress(const QueryRows& rows, Layer& layer);

  SnapKvOptions options_;
  int32_t budget_, window_;
  KeyRange documents_ = {0, 0};  // tokens; empty: none are known of
  std::vector<Layer> layers_;
};

}  // namespace reprise
