// What policies that give up tokens for good have in common on a CUDA device; see
// methods/baselines/evicting.h.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "attention/cuda/device_policy.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/kept_keys.h"
#include "kernels/cuda/staged_array.h"
#include "methods/baselines/evicting.h"

namespace reprise {

/// The host says what every sequence keeps, and owns its side pages; when the last rows of a prompt
/// are read, kernels choose tokens by the attention of those rows and copy them there. From the
/// next pass on side pages are read, and the sequence's own pages are freed. All layers that are
/// the policy's own are treated alike.
class DeviceEvicting : public DevicePolicy {
 public:
  Status reserve(const DeviceRoom& room) override;
  Status plan(const DevicePlan& plan, cudaStream_t stream) override;
  Status begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) override;
  Status select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t stream) override;
  std::vector<PrefillPart> prefill_parts(uint32_t layer, uint32_t step,
                                         int32_t position) const override;
  Status after_prefill(const DevicePrompt& prompt, cudaStream_t stream) override;
  uint64_t keys_read(const DeviceRow& row) const override;

 protected:
  /// Queries of the last rows of a prompt, and what softmax divided their weights by.
  struct Capture {
    kernels::cuda::DeviceBuffer<__nv_bfloat16> q;  // [n_layer, rows, n_head, head_dim]
    kernels::cuda::DeviceBuffer<float> lse;        // [n_layer, rows, n_head]
    int32_t first = 0, end = 0, prompt_end = 0;    // positions; rows = prompt_end - first
  };
  /// Of a sequence.
  struct State {
    std::optional<Kept> next;  // what is kept from the next pass on
    std::optional<Capture> capture;
    kernels::cuda::DeviceBuffer<kernels::cuda::KeyWeight> weights;  // as H2oStepArgs
    kernels::cuda::DeviceBuffer<int32_t> until;                     // as H2oStepArgs
  };
  /// What stays of the keys that are there when a prompt has been read.
  struct Choice {
    uint32_t candidates = 0, chosen = 0, tail = 0;  // as ChooseKeysArgs
    uint32_t always = 0;  // candidates before this one are chosen whatever they score
    int32_t known = 0;    // own tokens before this one were there when the prompt began
    Kept next;
  };
  /// Keys of one layer that are ranked.
  struct Ranking {
    const DevicePrompt& prompt;
    const State& state;
    kernels::cuda::KeptKeys keys;
    Choice choice;
  };
  /// side_tokens: of a sequence. recent > 0: so many recent tokens are kept, and others in side
  /// pages.
  DeviceEvicting(const ModelConfig& config, uint32_t side_tokens, uint32_t recent);

  /// Last rows of a prompt whose queries are kept for the choice; 0: all.
  virtual int32_t voters(const EvictingPolicy& host, int32_t prompt_end) const = 0;
  /// Nothing: all keys stay.
  virtual std::optional<Choice> choice(const EvictingPolicy& host, const Kept& kept,
                                       int32_t end) const = 0;
  /// Before a row is decoded; may change what is kept.
  virtual Status plan_row(EvictingPolicy&, State&, int32_t /*position*/, PagePool&) { return {}; }
  /// Makes a sequence's state usable, that of another one if it was forked.
  virtual Status own_state(State&, const State* /*from*/, cudaStream_t) { return {}; }
  /// Enqueues scores_ of keys that have votes_.
  virtual Status score(const Ranking& ranking, cudaStream_t stream) = 0;
  virtual void keep_weights(const Ranking&, kernels::cuda::CompactKeysArgs&) const {}

  const std::vector<uint32_t>& layers(const EvictingPolicy& host);
  /// Side pages of every layer, and that nobody else writes them; false: no memory.
  bool own_side(EvictingPolicy& host, PagePool& pool);
  void keep(EvictingPolicy& host, const Kept& kept);
  const uint32_t* side_table(uint32_t layer, uint32_t row) const {
    return side_tables_.device() + (size_t{layer} * rows_ + row) * side_pages_;
  }
  const kernels::cuda::KeptRow* kept_rows(uint32_t row) const { return kept_rows_.device() + row; }

  const ModelConfig& config_;
  uint32_t side_tokens_, side_pages_, recent_;
  uint32_t stride_ = 0;                        // keys of a sequence
  kernels::cuda::DeviceBuffer<float> votes_;   // [n_head, stride]
  kernels::cuda::DeviceBuffer<float> scores_;  // [n_kv_head, stride]

 private:
  /// A step of the pass that is being planned.
  struct Step {
    EvictingPolicy* host = nullptr;
    State* state = nullptr;
    int32_t captured = 0;          // position of the first row that is captured
    std::optional<Choice> choice;  // the prompt ends
  };
  struct Shown {                   // what a row of the device's tables stands for
    uint64_t side = 0, moves = 0;  // of its side pages, of their pool
    Kept kept;
    const void* weights = nullptr;
    friend bool operator==(const Shown& a, const Shown& b) {
      return a.side == b.side && a.moves == b.moves && a.kept.side == b.kept.side &&
             a.kept.begin == b.kept.begin && a.weights == b.weights;
    }
  };

  Result<State*> state_of(EvictingPolicy& host, cudaStream_t stream);
  Status plan_step(const SequenceStep& step, int32_t position, Step& planned, cudaStream_t stream);
  Status plan_prompt(const SequenceStep& step, int32_t position, Step& planned);
  bool show(uint32_t row, const Step& planned);
  Status send_tables(uint32_t turn, cudaStream_t stream);
  Status capture(const DevicePrompt& prompt, const Step& step, cudaStream_t stream);
  Status compress(const Ranking& ranking, cudaStream_t stream);
  void recycle(State& state);

  uint32_t rows_ = 0, list_capacity_ = 0;
  std::vector<uint32_t> layers_;  // that are the policy's own
  std::vector<Step> steps_;
  std::vector<Capture> idle_captures_;
  std::vector<Shown> shown_;                                      // [rows]
  std::vector<uint32_t> host_tables_;                             // as side_tables_
  std::vector<kernels::cuda::KeptRow> host_rows_;                 // [rows]
  kernels::cuda::StagedArray<uint32_t> side_tables_;              // [n_layer, rows, side_pages]
  kernels::cuda::StagedArray<kernels::cuda::KeptRow> kept_rows_;  // [rows]
  kernels::cuda::DeviceBuffer<uint32_t> list_pages_;              // [n_layer, rows, list_capacity]
  kernels::cuda::DeviceBuffer<uint16_t> list_slots_;              // the same shape
  kernels::cuda::DeviceBuffer<int32_t> list_keys_;                // [n_layer, rows]
  kernels::cuda::DeviceBuffer<uint32_t> chosen_;                  // [n_kv_head, side_tokens]
};

}  // namespace reprise
