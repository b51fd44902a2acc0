// StreamingLLM (Xiao et al. 2024): attention sinks plus a sliding window, in constant memory.
#pragma once

#include "attention/policy.h"
#include "reprise/options.h"

namespace reprise {

struct StreamingOptions {
  uint32_t sink = 4;
  uint32_t window = 1024;
  std::string positions = "cache";
  std::string prompt = "window";
};

template <class Visitor>
void visit_options(StreamingOptions& o, Visitor&& visit) {
  visit(OptionSpec{"sink", "first keys that are always read", "tokens", 0, 1 << 20}, o.sink);
  visit(OptionSpec{"window", "recent keys that are read, the row's own included", "tokens", 1,
                   1 << 24},
        o.window);
  visit(OptionSpec{"positions", "distance to the sinks: as inside the cache, or in the text", "", 0,
                   0, "cache|text"},
        o.positions);
  visit(OptionSpec{"prompt", "how prompts are read: as answers, or whole, keeping every key", "", 0,
                   0, "window|full"},
        o.prompt);
}

class StreamingPolicy : public Policy {
 public:
  StreamingPolicy(const StreamingOptions& options, const ModelConfig&);

  const StreamingOptions& options() const { return options_; }

  std::unique_ptr<Policy> fork() const override { return std::make_unique<StreamingPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  int32_t reads_from(const QueryRows& rows) const override { return rows.end(); }
  void after_step(SequenceKv& kv) override;
  bool can_resume(const SequenceKv& kv, int32_t length) const override;
  bool evicts() const override { return true; }  // though pages of whole prompts stay
  bool unbounded() const override { return bounded_ && !whole_prompts_; }
  std::string prefill_key() const override {
    return whole_prompts_ ? std::string(kDensePrefill) : std::string();
  }
  /// Until sinks and window are full everything is read, as by full attention.
  int32_t next_cut(int32_t position) const override {
    const bool cuts = !whole_prompts_ && position < sink_ + window_;
    return cuts ? sink_ + window_ : Policy::next_cut(position);
  }
  void leave_alone(uint32_t layer) override {
    Policy::leave_alone(layer);
    bounded_ = bounded_ && layer_windows_[layer] > 0;
  }

 private:
  /// First keys of a layer that stay, and the first recent key that the row at position length
  /// reads.
  KeyRange evictable(size_t layer, int32_t length) const;

  StreamingOptions options_;
  int32_t sink_, window_;
  bool cache_positions_, whole_prompts_;
  bool bounded_ = true;  // no layer keeps everything
  std::vector<int32_t>
      layer_windows_;  // [n_layer] the model's own windows; 0 = this policy's layer
};

}  // namespace reprise
