// An attention policy: decides, layer by layer, which keys the rows of one sequence read.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/selection.h"
#include "base/thread_pool.h"
#include "kernels/matmul.h"
#include "kv/sequence_kv.h"
#include "model/model.h"
#include "reprise/error.h"
#include "reprise/progress.h"

namespace reprise {

/// The rows of one sequence in one forward pass. Their keys are stored before select() is called.
struct QueryRows {
  uint32_t layer = 0;
  kernels::Phase phase = kernels::Phase::kDecode;
  std::span<const Row> rows;         // ascending positions
  const float* q = nullptr;          // [rows, n_head, head_dim], before rotation
  const float* q_rotated = nullptr;  // the same at the rows' own positions
  int32_t prompt_end = 0;            // tokens of the prompt that the last prefill row belongs to
  const SequenceKv* kv = nullptr;
  ThreadPool* pool = nullptr;            // idle meanwhile
  const ProgressFn* progress = nullptr;  // of who waits for a prompt

  /// How far long work of select() is; false: the request was cancelled, so it is given up.
  bool report(const Progress& done) const { return progress == nullptr || (*progress)(done); }
  int32_t first() const { return rows.front().position; }
  int32_t end() const { return rows.back().position + 1; }
};

/// What the executor computed for the rows of a select().
struct AttentionResult {
  const float* out = nullptr;  // [rows, n_head, head_dim]
  const float* lse = nullptr;  // [rows, n_head] natural log, over the keys that were read
  double select_ms = 0;        // of this layer
  double attend_ms = 0;        // of this layer: the sequence's share, by bytes read
};

class Policy;

/// What a policy wants of a decode step on a device.
struct DeviceStep {
  const Policy* policy = nullptr;  // which of acting() chooses the keys
  bool timed = false;              // step_took() gets its time
};

/// Named figures of a policy, summed or averaged over the request: {"recovery", 0.97}.
using PolicyStats = std::vector<std::pair<std::string, double>>;

/// Prefill key of policies that read every key while they read a prompt.
inline constexpr std::string_view kDensePrefill = "full:rotated";

/// State and decisions for one sequence; freed, forked and accounted with it. Written once against
/// this interface; only kernels differ between backends.
class Policy {
 public:
  virtual ~Policy() = default;

  /// A policy in the same state for a copy of the sequence.
  virtual std::unique_ptr<Policy> fork() const = 0;
  /// Fills selection, which arrives reset. Not called for layers whose own sliding window bounds
  /// what is read.
  virtual void select(const QueryRows& rows, Selection& selection) = 0;
  /// Before the select() of each of several steps of a prompt in one pass: the rows of all of them.
  /// What is looked for in all keys can be looked for together.
  virtual void foresee(const QueryRows& /*rows*/) {}
  /// Of keys before this position select() and observe() read none themselves, but for those before
  /// reads_before(), so that of the others only the selected ones need be in memory.
  virtual int32_t reads_from(const QueryRows&) const { return 0; }
  virtual int32_t reads_before(const QueryRows&) const { return 0; }
  /// Fills selection, which arrives reset, with what select() will probably choose for a decode
  /// row to come, and changes nothing else. Its queries are those of the layer before, or null
  /// before any are known. False: what the layer's last row read is the better guess.
  virtual bool predict(const QueryRows&, Selection&) { return false; }
  /// Whether observe() wants the results of a layer's rows of a phase.
  virtual bool observes(uint32_t /*layer*/, kernels::Phase) const { return false; }
  virtual void observe(const QueryRows&, const AttentionResult&) {}
  /// [n_head] What the policy supposes |out - full| / |full| to be in the layer that observe() was
  /// last called for, up to a factor; 0 where it supposes nothing. Empty: it never does.
  virtual std::span<const float> supposed_errors() const { return {}; }
  /// After a forward pass whose tokens are committed: may evict pages that no later row will read.
  virtual void after_step(SequenceKv&) {}

  /// Whether a sequence can go on from its first length tokens with the pages it still has.
  virtual bool can_resume(const SequenceKv& kv, int32_t length) const;
  /// Whether every row reads every key it can see, at the keys' own positions.
  virtual bool reads_everything() const { return false; }
  /// Whether keys are given up that a later row might have read.
  virtual bool evicts() const { return false; }
  /// Whether positions stay in the trained range however long the sequence grows; lifts the context
  /// limit.
  virtual bool unbounded() const { return false; }
  /// Forgets what depends on tokens from length on; they are dropped from the sequence.
  virtual void truncate(int32_t /*length*/) {}
  /// Which tokens that the sequence holds are documents that were loaded: the question stands
  /// behind them. Until truncate() drops some of them.
  virtual void set_documents(int32_t /*begin*/, int32_t /*end*/) {}
  /// Whether a sequence can go on from its KV and save_state(): the rest of the state is made again
  /// from KV, or made up for by rows that observed_prompt_rows() asks for.
  virtual bool rebuilds() const { return true; }
  /// What a session file keeps beside KV, so that it need not be made again; may be empty.
  virtual std::string save_state() const { return {}; }
  /// Takes up what save_state() wrote under the same spec for a sequence of so many tokens. An
  /// error leaves the policy as truncate(0) does.
  virtual Status restore_state(std::string_view state, int32_t length);
  /// Whether keys are stored without rotation and rotated when read.
  virtual bool position_free() const { return false; }
  /// Prompts prefilled under equal non-empty keys have equal KV and may share it.
  virtual std::string prefill_key() const { return {}; }
  /// Last rows of a prompt that must be computed under this policy even where their KV could be
  /// shared, because it looks at their queries. kept: tokens of its beginning that the sequence
  /// holds.
  virtual int32_t observed_prompt_rows(int32_t /*prompt_end*/, int32_t /*kept*/) const { return 0; }
  /// Leading tokens of a prompt that alone shape the state which truncate() to them leaves once the
  /// prompt is read, so that other prompts that begin with them can take it up; 0 = none.
  virtual int32_t shared_length(int32_t /*prompt_end*/) const { return 0; }
  /// The first position after this one at which a prefill step must begin anew, because rows before
  /// and after it are read in different ways.
  virtual int32_t next_cut(int32_t /*position*/) const {
    return std::numeric_limits<int32_t>::max();
  }
  /// Prompt rows come in whole cells of a grid of so many positions, as far as the prompt goes,
  /// because the rows of a call share what they read; 0 = in any number.
  virtual int32_t prefill_grid() const { return 0; }
  /// Where there is a grid: rows from this position on that make up a cell, at most what is left of
  /// the grid's; fewer cut it.
  virtual int32_t prefill_cell(int32_t position, int32_t /*prompt_end*/) const {
    return prefill_grid() - position % prefill_grid();
  }
  /// Where there is a grid: whether a pass may hold several cells of a prompt, because what rows of
  /// a cell read follows from them and from keys alone.
  virtual bool joins_cells() const { return false; }
  /// Figures of the answer so far; cleared when an answer begins.
  virtual PolicyStats stats() const { return {}; }
  virtual void clear_stats() {}
  /// Bytes of this policy's own state.
  virtual uint64_t state_bytes() const { return 0; }

  /// Policies of which one chooses the keys of a decode step on a device; their specs differ.
  virtual std::vector<const Policy*> acting() const { return {this}; }
  /// Leaves out those that do not run where it can do without them.
  virtual void restrict_to(const std::function<bool(const Policy&)>& /*runs*/) {}
  /// Before a decode step on a device.
  virtual DeviceStep begin_device_step(int32_t /*position*/) { return {this, false}; }
  /// After a decode step: how long it took as a whole, 0 where it was not timed.
  virtual void step_took(int32_t /*position*/, double /*ms*/) {}

  /// What stands right of all decorators.
  virtual Policy& undecorated() { return *this; }

  /// What it was created from, options and decorators included.
  const std::string& spec() const { return spec_; }
  void set_spec(std::string_view spec) { spec_ = spec; }

  /// Tells a policy that some layers are not its own: select() is never called for them and it
  /// evicts nothing there. Decorators pass it on.
  virtual void leave_alone(uint32_t layer) { left_alone_.insert(layer); }

 protected:
  bool is_left_alone(uint32_t layer) const { return left_alone_.contains(layer); }

 private:
  std::set<uint32_t> left_alone_;
  std::string spec_;
};

/// A policy that changes what another one does; everything it does not override is the inner's.
class PolicyDecorator : public Policy {
 public:
  explicit PolicyDecorator(std::unique_ptr<Policy> inner) : inner_(std::move(inner)) {}
  PolicyDecorator(const PolicyDecorator& other) : Policy(other), inner_(other.inner_->fork()) {}

  void select(const QueryRows& rows, Selection& out) override { inner_->select(rows, out); }
  void foresee(const QueryRows& rows) override { inner_->foresee(rows); }
  int32_t reads_before(const QueryRows& rows) const override { return inner_->reads_before(rows); }
  bool observes(uint32_t layer, kernels::Phase phase) const override {
    return inner_->observes(layer, phase);
  }
  void observe(const QueryRows& rows, const AttentionResult& result) override {
    inner_->observe(rows, result);
  }
  std::span<const float> supposed_errors() const override { return inner_->supposed_errors(); }
  void after_step(SequenceKv& kv) override { inner_->after_step(kv); }
  void truncate(int32_t length) override { inner_->truncate(length); }
  void set_documents(int32_t begin, int32_t end) override { inner_->set_documents(begin, end); }
  bool rebuilds() const override { return inner_->rebuilds(); }
  std::string save_state() const override { return inner_->save_state(); }
  Status restore_state(std::string_view state, int32_t length) override {
    return inner_->restore_state(state, length);
  }
  bool can_resume(const SequenceKv& kv, int32_t length) const override {
    return inner_->can_resume(kv, length);
  }
  bool evicts() const override { return inner_->evicts(); }
  Policy& undecorated() override { return inner_->undecorated(); }
  bool unbounded() const override { return inner_->unbounded(); }
  bool position_free() const override { return inner_->position_free(); }
  std::string prefill_key() const override { return inner_->prefill_key(); }
  int32_t observed_prompt_rows(int32_t prompt_end, int32_t kept) const override {
    return inner_->observed_prompt_rows(prompt_end, kept);
  }
  int32_t next_cut(int32_t position) const override { return inner_->next_cut(position); }
  int32_t prefill_grid() const override { return inner_->prefill_grid(); }
  int32_t prefill_cell(int32_t position, int32_t prompt_end) const override {
    return inner_->prefill_cell(position, prompt_end);
  }
  bool joins_cells() const override { return inner_->joins_cells(); }
  PolicyStats stats() const override { return inner_->stats(); }
  void clear_stats() override { inner_->clear_stats(); }
  uint64_t state_bytes() const override { return inner_->state_bytes(); }
  void leave_alone(uint32_t layer) override {
    Policy::leave_alone(layer);
    inner_->leave_alone(layer);
  }

  const Policy& wrapped() const { return *inner_; }

 protected:
  Policy& inner() { return *inner_; }
  const Policy& inner() const { return *inner_; }

 private:
  std::unique_ptr<Policy> inner_;
};

/// Whether every page of a layer that holds one of the keys [begin, end) is present.
bool keys_present(const SequenceKv& kv, uint32_t layer, int32_t begin, int32_t end);

}  // namespace reprise
