// InfLLM (Xiao et al. 2024): the first keys, the best blocks of past keys and a recent window are
// read, in prefill too; everything outside the window stands at one and the same distance, so a
// model can read more than it was trained for. Keys are stored without positions; nothing is
// evicted.
//
// Decided apart from the paper: keys that have left the window keep their own distance until their
// block is complete, so the window holds between `local` and `local + block` keys; one query in 16
// votes for the keys that represent a block (see BlockMemory); one block list is shared by all
// heads of a layer.
//
// Rows of one call share what they read: its blocks are chosen by their mean query, and the window
// of the first row is read by all. So calls are cut at multiples of `chunk`; which keys represent a
// block does not depend on calls.
#pragma once

#include "attention/policy.h"
#include "methods/block_memory.h"
#include "reprise/options.h"

namespace reprise {

struct InfLlmOptions {
  uint32_t init = 64;
  uint32_t local = 1024;
  uint32_t blocks = 8;
  uint32_t block = 64;
  uint32_t representatives = 4;
  uint32_t chunk = 512;
};

template <class Visitor>
void visit_options(InfLlmOptions& o, Visitor&& visit) {
  visit(OptionSpec{"init", "first keys that are always read", "tokens", 0, 1 << 20}, o.init);
  visit(OptionSpec{"local", "recent keys that are always read, at their own distance", "tokens", 1,
                   1 << 20},
        o.local);
  visit(OptionSpec{"blocks", "past blocks that are read", "blocks", 0, 1 << 20}, o.blocks);
  visit(OptionSpec{"block", "size of a block", "tokens", 1, 1 << 16}, o.block);
  visit(OptionSpec{"representatives", "keys of a block whose mean it is ranked by", "tokens", 1,
                   1 << 16},
        o.representatives);
  visit(OptionSpec{"chunk", "prompt rows that share what they read", "tokens", 1, 1 << 20},
        o.chunk);
}

class InfLlmPolicy : public Policy {
 public:
  InfLlmPolicy(const InfLlmOptions& options, const ModelConfig& config);

  std::unique_ptr<Policy> fork() const override { return std::make_unique<InfLlmPolicy>(*this); }
  void select(const QueryRows& rows, Selection& selection) override;
  void truncate(int32_t length) override { memory_.truncate(length); }
  bool rebuilds() const override { return false; }  // votes come from queries
  bool position_free() const override { return true; }
  int32_t prefill_grid() const override { return chunk_; }
  uint64_t state_bytes() const override { return memory_.bytes(); }

 private:
  int32_t init_, local_, chunk_;
  size_t blocks_;
  BlockMemory memory_;
  std::vector<float> scores_;  // [blocks]
  std::vector<int32_t> picks_;
};

}  // namespace reprise
