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

#include "attention/executor.h"
#include "engine/sampler.h"
#include "engine/stop_matcher.h"
#include "kv/prefix_cache.h"
#include "model/model.h"
#include "reprise/request.h"
#include "text/tokenizer.h"

namespace reprise {

/// What a session owns: tokens, their KV, and the policy that chose what shaped it.
struct Sequence {
  Sequence(PagePool& pool, std::unique_ptr<Policy> how) : kv(pool), policy(std::move(how)) {}

  std::vector<int32_t> tokens;  // kv.length() of them
  size_t prefilled = 0;         // leading tokens whose KV has prefill numerics, which can be shared
  SequenceKv kv;
  std::unique_ptr<Policy> policy;
  bool busy = false;  // a request is running on it

  /// Drops tokens from the end; false when the policy cannot go on from there.
  bool truncate(size_t length);
  void clear();
};

struct SchedulerLimits {
  uint32_t context = 0;  // tokens of a sequence
  uint32_t chunk = 512;  // prompt rows of a step
  uint32_t batch = 16;   // requests that run at the same time; later ones wait
  bool prefix_cache = true;
};

/// Prefixes that nobody uses are given up when the pool is full.
class Scheduler {
 public:
  using DoneFn = std::function<void(Result<Answer>)>;

  Scheduler(Model& model, const Tokenizer& tokenizer, PagePool& pool, ThreadPool& threads,
            const SchedulerLimits& limits);
  ~Scheduler() { pool_.set_reclaim({}); }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Checks the request and queues it. Errors: kEmptyPrompt, kInvalidArgument (token outside the
  /// vocabulary, sampling out of range, sequence busy), kContextExceeded; nothing is changed then.
  Status submit(Sequence& sequence, Request request, DoneFn on_done);
  /// One forward pass; false when idle. A request that fails (kOutOfMemory when it gets no KV
  /// memory) is told so through its on_done; the others go on.
  bool step();
  /// Drops the request that runs on a sequence; its on_done is not called.
  void cancel(const Sequence& sequence);

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
    std::optional<Result<Answer>> result;  // set when it has ended

    size_t prompt_left() const {
      return request.prompt.size() - std::min(request.prompt.size(), sequence->tokens.size());
    }
  };
  struct Planned {  // rows of one request in this pass
    Running* running;
    uint32_t first_row, rows;
    bool wants_logits;
  };

  void admit();
  void reuse_prefix(Running& running);
  void plan_rows();
  void plan_request(Running& running, size_t rows, kernels::Phase phase);
  Status reserve(SequenceKv& kv, size_t rows) const;
  void commit(const Planned& planned, size_t step);
  void advance(const Planned& planned, std::span<float> logits);
  void finish_prefill(Running& running);
  void accept_token(Running& running, int32_t token);
  void finish(Running& running, FinishReason reason);
  void deliver_finished();
  PrefixCache* prefix_cache(const Policy& policy);

  Model& model_;
  const Tokenizer& tokenizer_;
  PagePool& pool_;
  SchedulerLimits limits_;
  CpuExecutor executor_;
  std::map<std::string, std::unique_ptr<PrefixCache>> prefixes_;  // by Policy::prefill_key
  std::deque<std::unique_ptr<Running>> waiting_;
  std::vector<std::unique_ptr<Running>> running_;
  size_t first_share_ = 0;  // whose prompt gets the rows left over by rounding
  std::vector<Row> rows_;
  std::vector<SequenceStep> steps_;
  std::vector<Planned> planned_;
  std::vector<uint32_t> logit_rows_;
  std::vector<float> logits_;  // [logit rows, vocab]
};

}  // namespace reprise
