// Continuous batching: every step computes one row of each answering sequence and a fair share of
// the prompts still being read.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"
#include "kv/prefix_cache.h"
#include "model/model.h"
#include "reprise/request.h"
#include "text/tokenizer.h"

namespace reprise {

/// What a session owns: tokens, their KV, and the policy that chose what shaped it.
struct Sequence {
  static constexpr size_t kAll = ~size_t{0};
  Sequence(PagePool& pool, std::unique_ptr<Policy> how) : kv(pool), policy(std::move(how)) {}

  std::vector<int32_t> tokens;  // kv.length() of them
  size_t prefilled = 0;         // leading tokens whose KV has prefill numerics
  bool restored = false;        // from a file: other sessions do not get its KV
  size_t exact = kAll;          // leading tokens before KV that was loaded from a store
  SequenceKv kv;
  std::unique_ptr<Policy> policy;
  std::vector<float> logits;  // [vocab] behind the last token, or empty: not known
  bool busy = false;          // a request is running on it

  /// kInvalidArgument while a request is running on it.
  Status check_idle() const;
  /// Drops tokens from the end; false when the policy cannot go on from there.
  bool truncate(size_t length);
  void clear();
  bool fused() const { return exact < tokens.size(); }
};

struct SchedulerLimits {
  uint32_t context = 0;  // tokens of a sequence
  uint32_t chunk = 512;  // prompt rows of a step
  uint32_t batch = 16;   // requests that run at the same time; later ones wait
  bool prefix_cache = true;
};

/// KV that no running request needs rests: the pool may move it out of memory, and prefixes are
/// given up when it is full. Where the backend chooses tokens itself, the next pass starts before
/// the last one's tokens are looked at.
class Scheduler {
 public:
  using DoneFn = std::function<void(Result<Answer>)>;

  Scheduler(const ModelConfig& config, const Tokenizer& tokenizer, PagePool& pool, Backend& backend,
            const SchedulerLimits& limits);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Checks the request and queues it. Errors: kEmptyPrompt, kInvalidArgument (token outside the
  /// vocabulary, sampling out of range, sequence busy), kContextExceeded; nothing is changed then.
  Status submit(Sequence& sequence, Request request, DoneFn on_done);
  /// kInvalidArgument where one is outside the vocabulary.
  Status check_tokens(std::span<const int32_t> tokens) const;
  /// What submit() checks of a prompt.
  Status check(const Sequence& sequence, std::span<const int32_t> prompt) const;
  /// Empties a sequence and gives it the KV of the prompt's beginning that the prefix cache holds;
  /// it is awake then.
  void take_prefix(Sequence& sequence, std::span<const int32_t> prompt);
  /// Lets the prefix cache hold what prefill computed of a sequence.
  void keep_prefix(const Sequence& sequence);
  /// Lets the prefix cache hold, for a prompt, a copy of the KV that it holds of another one, in
  /// pages of its own: sequences as long as users' are made without computing them, where only
  /// speed is asked for. Nothing is copied for policies whose prompts share no prefixes.
  Status copy_prefix(const Policy& policy, std::span<const int32_t> from,
                     std::span<const int32_t> to);
  /// Lets KV of every running request lie on disk in part, so that none takes the others' memory,
  /// nor a prompt's that is read beside them. Whether that changed any. Between passes.
  bool page_out();
  /// One forward pass; false when idle, or called by a callback of a step. A request that fails
  /// (kOutOfMemory when it gets no KV memory) is told so through its on_done; the others go on.
  bool step();
  bool stepping() const { return stepping_; }
  /// Drops the request that runs on a sequence; none of its callbacks is called from now on.
  void cancel(const Sequence& sequence);
  /// Keeps what a callback gave up until the step ends, which may still use it.
  void keep(std::shared_ptr<void> what) {
    if (stepping_) kept_.push_back(std::move(what));
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    Running(Sequence& where, Request what, DoneFn done, const Tokenizer& tokenizer);

    Sequence* sequence;
    Request request;
    DoneFn on_done;
    Sampler sampler;
    StreamDecoder decoder;
    StopMatcher stop;
    Answer answer;
    int32_t next_token = 0;  // sampled, not yet computed
    Clock::time_point submitted, prefill_start, last_token;
    std::vector<double> token_ms;          // time between tokens
    KvPaging paging;                       // when the prompt was read
    int losses = 0;                        // of KV, while the prompt was read
    int passed_over = 0;                   // passes in a row that had no room for it
    bool waits = false;                    // for memory that others hold and cannot be paged out
    bool cancelled = false;                // by what report() calls, or cancel()
    ProgressFn report;                     // on_progress, until it says to stop; or none
    std::optional<Result<Answer>> result;  // set when it has ended

    /// Text that waits for more to follow it.
    std::string take_held();
    size_t prompt_left() const {
      return request.prompt.size() - std::min(request.prompt.size(), sequence->tokens.size());
    }
  };
  struct SharedState {  // what a policy knows of the beginning of a prompt
    std::vector<int32_t> tokens;
    std::unique_ptr<Policy> policy;  // after truncate() to them
  };
  struct Turn {  // of a request in a pass that is being planned
    Running* running;
    kernels::Phase phase;
    std::vector<size_t> cells;  // rows of steps, in order
    size_t rows = 0;            // that KV has room for, once it was asked
  };
  struct Planned {     // rows of one request in a step
    Running* running;  // null once it was cancelled
    uint32_t first_row, rows;
    bool has_result;
  };
  struct Pass {
    std::vector<Row> rows;
    std::vector<SequenceStep> steps;
    std::vector<Planned> planned;    // [steps]
    std::vector<RowResult> results;  // of those that have one, in order
    uint64_t paged = 0;              // pages of a layer, of sequences that are paged out
  };

  void compute_pass();
  void admit();
  void reuse_prefix(Running& running);
  /// Whether a sequence holds a prompt of which no row has to be computed.
  static bool holds_answer(const Sequence& sequence, std::span<const int32_t> prompt);
  /// Chooses the first token of such a prompt.
  void begin_answer(Running& running);
  /// Brings the sequence's KV to the fastest memory that has room; what a disk lost is read again.
  void wake(Running& running);
  /// may_page: else the whole sequence must fit in memory.
  Status wake(Sequence& sequence, bool may_page = true);
  /// After a pass that failed: a prompt is read on from what is left of it where KV was lost on
  /// disk, other requests end.
  void recover(Running& running, const Error& error);
  /// The longest prefix of at most limit tokens that is cached, where the sequence has less.
  void use_cached(Sequence& sequence, std::span<const int32_t> prompt, size_t limit);
  Pass plan();
  Pass plan_rows();
  std::vector<Turn> take_turns();
  /// The first request that too many passes in a row had no room for; or null.
  const Running* find_starved() const;
  /// Rows of a prompt's step that begins at a position; at most so many where there is no grid.
  static size_t cell_at(const Policy& policy, size_t position, size_t prompt_end, size_t most);
  /// Where the cell begins that a row of a prompt is read in; without a grid, the row itself.
  static size_t cell_begin(const Policy& policy, size_t position, size_t prompt_end);
  /// Rows of steps of a prompt that make up its share of a pass, in order.
  std::vector<size_t> next_cells(const Running& running, size_t share) const;
  /// Finds room for a request's rows, or none yet.
  void reserve_turn(Turn& turn, Pass& pass);
  void plan_request(const Turn& turn, Pass& pass);
  void add_step(Running& running, size_t position, size_t rows, kernels::Phase phase, Pass& pass);
  /// The pass after the one that is being computed: one more token of each of its requests, if
  /// nothing has to be known of it before.
  std::optional<Pass> plan_ahead();
  bool may_run_ahead(const Running& running) const;
  void start(Pass pass);
  void finish_oldest();
  Status reserve(Sequence& sequence, size_t rows);
  /// Whether KV of the sequence may lie on disk in part while a request runs on it.
  bool can_page(const Sequence& sequence) const {
    return pool_.can_page() && !sequence.policy->evicts();
  }
  /// Whether that many pages of a layer, of a sequence that is paged out, can be held beside those
  /// of the pass; else it is passed over.
  bool has_room(Running& running, uint64_t layer, const Pass& pass);
  /// Rows of a paged out sequence that a pass may compute: they need memory in every layer.
  size_t rows_in_memory(const Sequence& sequence, std::span<const size_t> cells) const;
  /// Whether a sequence of so many tokens ever has room: before hours are spent on them.
  Status check_room(const Sequence& sequence, size_t tokens) const;
  void commit(const Pass& pass, size_t step);
  void advance(const Planned& planned, const RowResult* what, size_t result);
  /// False when the request was cancelled.
  bool report_prefill(Running& running);
  void finish_prefill(Running& running);
  void choose_token(Running& running, std::span<float> logits);
  void accept_token(Running& running, int32_t token);
  void finish(Running& running, FinishReason reason);
  void deliver_finished();
  PrefixCache* prefix_cache(const Policy& policy);
  /// What the sequence's policy would make of the prompt, if another one has made it; or null.
  const SharedState* find_state(const Sequence& sequence, std::span<const int32_t> prompt) const;
  /// Keeps what the policy made of the prompt that was just read.
  void share_state(const Sequence& sequence, size_t prompt);

  const ModelConfig& config_;
  const Tokenizer& tokenizer_;
  PagePool& pool_;
  Backend& backend_;
  SchedulerLimits limits_;
  std::map<std::string, std::unique_ptr<PrefixCache>> prefixes_;  // by Policy::prefill_key
  std::deque<SharedState> states_;                                // the latest first
  std::deque<std::unique_ptr<Running>> waiting_, finished_;       // finished_: not told yet
  std::vector<std::unique_ptr<Running>> running_;
  bool paged_out_ = false;    // while a pass was planned
  size_t first_share_ = 0;    // whose prompt gets the rows left over by rounding
  std::deque<Pass> started_;  // not finished; two at most
  bool stepping_ = false;
  std::vector<std::shared_ptr<void>> kept_;  // until the step ends
};

}  // namespace reprise
