// Sessions that are asked again, also where what they were about came to nothing.
#include <gtest/gtest.h>

#include "engine/answers.h"
#include "engine/engine_impl.h"
#include "engine/tiny_model.h"

namespace reprise::test {
namespace {

std::vector<std::vector<float>> logits_of(Session& session, Request request) {
  std::vector<std::vector<float>> rows;
  request.on_logits = [&](std::span<const float> logits) {
    rows.emplace_back(logits.begin(), logits.end());
  };
  answer_of(session, request);
  return rows;
}

// The policies whose index is made from a prompt's queries, and those that watch an answer's.
const std::string kIndexed[] = {"csattention:budget=64", "csattention:mode=table,budget=64,index=1",
                                "csattention:mode=lists,budget=64,index=16",
                                "csattention:mode=paper,budget=64,index=16"};

// Rings of results that are reused, in contexts as short as these.
const std::string kRings = "mac:min_context=0,window=64,band=16,sink=4,align=4,tau=0.2,max_error=0";

void expect_equal_answers(const std::string& policy, size_t prompt) {
  SCOPED_TRACE(policy);
  const auto engine = tiny_engine();
  const Request request = request_of(tiny_prompt(prompt), 100);
  auto session = engine->open(policy);
  ASSERT_TRUE(session) << session.error().message;
  const auto want = logits_of(**session, request);
  EXPECT_EQ(logits_of(**session, request), want);
}

TEST(Repeat, TheSamePromptIsAnsweredTheSame) {
  for (const std::string& policy : kIndexed) expect_equal_answers(policy, 600);
  expect_equal_answers(kRings + ",guard=false", 600);
  expect_equal_answers(kRings + ",prefill=reuse", 600);
  expect_equal_answers(kRings, 1600);  // where the guard changes its mind
}

// Whose second answer begins at the position at which the first one ended.
TEST(Repeat, AutoBeginsAStepOfEveryAnswer) {
  const auto engine = tiny_engine();
  auto session = *engine->open("auto+quest:budget=64");
  const Request request = request_of(tiny_prompt(200), 2);
  const auto first = answer_of(*session, request).counters.policy;
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(answer_of(*session, request).counters.policy, first);
}

TEST(Repeat, PromptsThatWereGivenUpLeaveNothingBehind) {
  EngineOptions options = tiny_options();
  options.chunk = 71;
  options.prefix_cache = false;
  const auto engine = tiny_engine(options);
  const Request request = request_of(tiny_prompt(608), 12);
  for (const std::string& policy : kIndexed) {
    SCOPED_TRACE(policy);
    auto session = engine->open(policy);
    ASSERT_TRUE(session) << session.error().message;
    const auto want = logits_of(**session, request);
    auto other = *engine->open(policy);
    Request given_up = request;
    given_up.prompt.resize(120);
    given_up.on_progress = [](const Progress&) { return false; };
    EXPECT_FALSE(other->generate(given_up));
    EXPECT_FALSE(other->tokens().empty());
    EXPECT_EQ(logits_of(*other, request), want);
  }
}

/// A CPU backend whose n-th pass is computed and then reported as failed.
class FailingBackend : public Backend {
 public:
  FailingBackend(std::unique_ptr<Backend> inner, int passes)
      : inner_(std::move(inner)), passes_(passes) {}

  Status start(const ForwardPass& pass) override {
    const Status status = inner_->start(pass);
    if (passes_-- != 0) return status;
    EXPECT_TRUE(inner_->finish());
    return fail(ErrorCode::kCorrupt, "a page on disk is damaged");
  }
  Status finish() override { return inner_->finish(); }
  std::span<float> logits(size_t result) override { return inner_->logits(result); }
  int32_t token(size_t result) const override { return inner_->token(result); }
  StepCost cost(size_t step) const override { return inner_->cost(step); }
  Result<std::unique_ptr<FusionDevice>> fusion(uint64_t memory) override {
    return inner_->fusion(memory);
  }

 private:
  std::unique_ptr<Backend> inner_;
  int passes_;
};

TEST(Repeat, SessionsGoOnAfterAPassThatFailed) {
  const auto engine = tiny_engine();
  Engine::Impl& impl = engine->impl();
  for (const std::string& policy : std::initializer_list<std::string>{
           "full", "streaming:window=64", "quest:budget=64", "h2o:budget=64", "snapkv:budget=64",
           "dense:first=1+h2o:budget=64", "csattention:budget=64", kRings + ",guard=false",
           "attention_predictor:budget=64"}) {
    SCOPED_TRACE(policy);
    FailingBackend backend(cpu_backend(*impl.model, *impl.threads, {}), 3);
    SchedulerLimits limits;
    limits.context = 2048;
    limits.chunk = 512;
    Scheduler scheduler(impl.model->config(), *impl.tokenizer, impl.kv, backend, limits);
    auto session = *engine->open(policy);
    Sequence& sequence = session->impl().sequence;
    const auto ask = [&](std::vector<int32_t> prompt) {
      bool answered = false;
      EXPECT_TRUE(scheduler.submit(sequence, request_of(std::move(prompt), 6),
                                   [&](const Result<Answer>& answer) { answered = bool{answer}; }));
      while (scheduler.step()) continue;
      return answered;
    };
    EXPECT_FALSE(ask(tiny_prompt(300)));
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<int32_t> prompt = sequence.tokens;
      for (const int32_t token : tiny_prompt(30, 7)) prompt.push_back(token);
      EXPECT_TRUE(ask(prompt));
    }
  }
}

}  // namespace
}  // namespace reprise::test
