// CSAttention (arXiv 2604.08584): an index of the keys that is shaped by the prompt's queries finds
// the keys with the largest logits; they are read exactly, with sinks and a recent window. Nothing
// is evicted.
//
// The paper clusters prompt queries in subspaces and lists, for every centroid, the keys with the
// largest partial products (mode=paper, centroid_lists.h). Its scores rank poorly on real models
// and its lists outgrow the KV, so the default keeps the idea and replaces the structure
// (code_index.h). Decided apart from the paper: a budget holds the window too; query heads of a KV
// head share a set in the default mode; after a new prompt an index is made anew only where the
// context has grown.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "methods/csattention/key_index.h"
#include "reprise/options.h"

namespace reprise {

struct CsAttentionOptions {
  std::string mode = "codes";
  uint32_t budget = 1024;
  std::string unit = "page";
  float keep = 0.0f;
  uint32_t sink = 16;
  uint32_t window = 0;
  uint32_t period = 1;
  uint32_t observe = 256;
  uint32_t parts = 0;
  uint32_t bits = 4;
  uint32_t centroids = 0;
  float list = 0.25f;
  bool backoff = true;
  uint32_t iterations = 0;
  uint32_t seed = 1;
};

template <class Visitor>
void visit_options(CsAttentionOptions& o, Visitor&& visit) {
  visit(OptionSpec{"mode",
                   "codes: coded keys; table: products with query centroids; paper: lists of keys "
                   "per query centroid",
                   "", 0, 0, "codes|table|paper"},
        o.mode);
  visit(OptionSpec{"budget", "keys read per KV head", "tokens", 64, 1 << 24}, o.budget);
  visit(OptionSpec{"unit", "what is chosen; single keys in paper mode", "", 0, 0, "page|key"},
        o.unit);
  visit(OptionSpec{"keep", "share of the keys that is read where that is more than the budget", "",
                   0, 1},
        o.keep);
  visit(
      OptionSpec{"sink", "first keys that are always read, part of the budget; none in paper mode",
                 "tokens", 0, 1 << 20},
      o.sink);
  visit(OptionSpec{"window",
                   "recent keys that are always read, part of the budget; 0 = 128, or 32 in paper "
                   "mode",
                   "tokens", 0, 1 << 20},
        o.window);
  visit(OptionSpec{"period", "decode steps that use one search", "tokens", 1, 64}, o.period);
  visit(OptionSpec{"observe", "last prompt rows whose queries shape the index; 0 = all", "tokens",
                   0, 1 << 24},
        o.observe);
  visit(
      OptionSpec{"parts",
                 "parts of a head's dimensions, each with a code, table or lists of its own; 0 = a "
                 "quarter of the dimensions for codes, else 8",
                 "", 0, 64},
      o.parts);
  visit(OptionSpec{"bits", "of a code; up to 4, two share a byte", "bits", 1, 8}, o.bits);
  visit(OptionSpec{"centroids",
                   "query centroids of a part; 0 = a quarter of the dimensions of a head in table "
                   "mode, 128 in paper mode",
                   "", 0, 4096},
        o.centroids);
  visit(OptionSpec{"list", "share of the keys that a centroid lists in paper mode", "", 0, 1},
        o.list);
  visit(OptionSpec{"backoff", "two centroids for queries that have drifted, in paper mode"},
        o.backoff);
  visit(OptionSpec{"iterations", "of k-means; 0 = 4 for codes, else 10", "", 0, 1000},
        o.iterations);
  visit(OptionSpec{"seed", "of k-means"}, o.seed);
}

class CsAttentionPolicy : public Policy {
 public:
  CsAttentionPolicy(const CsAttentionOptions& options, const ModelConfig& config);
  CsAttentionPolicy(const CsAttentionPolicy& other);

  std::unique_ptr<Policy> fork() const override {
    return std::make_unique<CsAttentionPolicy>(*this);
  }
  void select(const QueryRows& rows, Selection& selection) override;
  void truncate(int32_t length) override;
  std::string prefill_key() const override { return std::string(kDensePrefill); }
  int32_t observed_prompt_rows() const override { return observe_; }
  PolicyStats stats() const override { return index_->stats(); }
  void clear_stats() override { index_->clear_stats(); }
  uint64_t state_bytes() const override;

 private:
  struct Search {     // the last one of a layer
    int32_t end = 0;  // of the keys its row saw; 0 = none
    int32_t recent = 0;
    std::vector<float> q;  // [n_head, head_dim]
    KeyPicks picks;
  };

  int32_t budget_at(int32_t end) const;
  bool stale(uint32_t layer, int32_t end) const;
  bool still_holds(const Search& search, const QueryRows& rows) const;
  void remember(const QueryRows& rows, int32_t recent, Search& search) const;

  const ModelConfig* config_;
  int32_t budget_, sink_, window_, period_, observe_;
  float keep_;
  std::unique_ptr<KeyIndex> index_;
  std::vector<Search> searches_;  // [n_layer]
};

}  // namespace reprise
