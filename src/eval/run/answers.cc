#include "eval/run/answers.h"

#include <algorithm>
#include <utility>

#include "base/try.h"
#include "engine/stop_matcher.h"
#include "eval/run/distribution.h"
#include "eval/run/measures.h"
#include "eval/run/prompt.h"
#include "eval/run/together.h"

namespace reprise::eval {
namespace {

// Collects the text after forced tokens, which neither belong to the answer nor end it.
class FreeText {
 public:
  FreeText(const Engine& engine, const Sample& sample, size_t forced)
      : engine_(engine), stop_(sample.stop), forced_(forced) {}

  bool take(const TokenEvent& event) {
    if (++tokens_ <= forced_) return true;
    ended_ = is_special(event);
    text_ += stop_.push(event.text);
    return !ended_ && !stop_.stopped();
  }
  std::string finish() { return text_ + stop_.finish(); }
  std::string_view reason(FinishReason engines) const {
    if (ended_) return finish_reason_name(FinishReason::kEnd);
    return finish_reason_name(stop_.stopped() ? FinishReason::kStop : engines);
  }

 private:
  // A special token, of whatever name, is the end of an answer.
  bool is_special(const TokenEvent& event) const {
    if (!event.text.empty()) return false;
    const std::span<const int32_t> token(&event.token, 1);
    return engine_.detokenize(token).empty() && !engine_.detokenize(token, true).empty();
  }

  const Engine& engine_;
  StopMatcher stop_;
  size_t forced_, tokens_ = 0;
  bool ended_ = false;
  std::string text_;
};

class SampleRun {
 public:
  SampleRun(Engine& engine, const Sample& sample, std::span<const std::string> policies,
            const Scope& scope, bool alone, const std::function<bool()>& go_on)
      : engine_(engine),
        sample_(sample),
        policies_(policies),
        scope_(scope),
        alone_(alone),
        go_on_(go_on),
        gold_(gold_tokens(engine, sample)) {}

  Result<std::vector<SampleRecord>> run() {
    const auto prompt = build_prompt(engine_, sample_);
    if (!prompt) return failed_everywhere(prompt.error());
    if (!scope_.generates && gold_.empty())
      return failed_everywhere({ErrorCode::kUnsupported,
                                "the sample has no gold answer to measure; use --scope decode"});
    split(prompt->tokens);
    SampleRecord record;
    record.id = sample_.id;
    record.prompt_tokens = prompt->tokens.size();
    record.truncated = prompt->truncated;
    record.references = sample_.references;
    record.axes = sample_.axes;
    records_.assign(policies_.size(), record);
    if (scope_.generates) REPRISE_CHECK(generate());
    if (!gold_.empty()) REPRISE_CHECK(measure_gold());
    return std::move(records_);
  }

 private:
  // What is prefilled and what is decoded though it belongs to the prompt.
  void split(const std::vector<int32_t>& prompt) {
    const size_t tail = std::min<size_t>(scope_.tail, prompt.size() - 1);
    const auto at = prompt.end() - static_cast<std::ptrdiff_t>(tail);
    request_.prompt.assign(prompt.begin(), at);
    request_.forced.assign(at, prompt.end());
    request_.ignore_end = true;
  }

  Status generate() {
    const size_t forced = request_.forced.size();
    std::vector<FreeText> texts(policies_.size(), FreeText(engine_, sample_, forced));
    std::vector<PolicyRequest> requests;
    for (size_t i = 0; i < policies_.size(); ++i) {
      PolicyRequest& asked = requests.emplace_back(PolicyRequest{policies_[i], request_});
      asked.request.max_tokens = static_cast<uint32_t>(forced) + sample_.max_tokens;
      asked.request.on_token = [&text = texts[i]](const TokenEvent& e) { return text.take(e); };
    }
    REPRISE_TRY(auto answers, answer_together(engine_, std::move(requests), go_on_));
    for (size_t i = 0; i < policies_.size(); ++i) {
      SampleRecord& record = records_[i];
      if (!fill(record, answers[i])) continue;
      record.generated_tokens = answers[i]->tokens.size() - forced;
      record.finish = texts[i].reason(answers[i]->finish);
      record.prediction = texts[i].finish();
      record.scores = sample_.score(record.prediction);
    }
    return {};
  }

  Status measure_gold() {
    const size_t forced = request_.forced.size();
    std::vector<std::vector<double>> nll(policies_.size());
    std::vector<size_t> likeliest(policies_.size());  // tokens of the gold answer
    std::vector<PolicyRequest> requests;
    for (size_t i = 0; i < policies_.size(); ++i) {
      PolicyRequest& asked = requests.emplace_back(PolicyRequest{policies_[i], request_});
      auto& tokens = asked.request.forced;
      tokens.insert(tokens.end(), gold_.begin(), gold_.end());
      asked.request.max_tokens = static_cast<uint32_t>(tokens.size());
      asked.request.on_logits = [this, &values = nll[i], &first = likeliest[i], row = size_t{0},
                                 forced](std::span<const float> logits) mutable {
        const size_t at = row++;
        if (at < forced) return;
        log_softmax(logits, distribution_);
        values.push_back(distribution_.nll(logits, gold_[at - forced]));
        first += distribution_.top[0] == gold_[at - forced] ? 1 : 0;
      };
    }
    REPRISE_TRY(auto answers, answer_together(engine_, std::move(requests), go_on_));
    for (size_t i = 0; i < policies_.size(); ++i) {
      SampleRecord& record = records_[i];
      if (!scope_.generates && fill(record, answers[i]))
        record.finish = finish_reason_name(answers[i]->finish);
      if (record.failed()) continue;
      if (nll[i].size() == gold_.size()) {
        record.scores.emplace_back("nll", mean(nll[i]));
        record.scores.emplace_back("greedy", likeliest[i] == gold_.size() ? 1.0 : 0.0);
      } else {
        fail_record(record, answers[i] ? Error{ErrorCode::kContextExceeded,
                                               "the gold answer does not fit in the context"}
                                       : answers[i].error());
      }
    }
    return {};
  }

  // Counters and times of an answer; false when there is none.
  bool fill(SampleRecord& record, const Result<Answer>& answer) const {
    if (!answer) {
      fail_record(record, answer.error());
      return false;
    }
    record.counters = counters_of(*answer);
    record.timing = timing_of(*answer, alone_);
    return true;
  }

  static void fail_record(SampleRecord& record, const Error& error) {
    record.finish = "failed";
    record.error = error.message;
    record.scores.clear();
    record.counters.clear();
    record.timing.clear();
  }

  std::vector<SampleRecord> failed_everywhere(const Error& error) const {
    return std::vector<SampleRecord>(policies_.size(), failed_record(sample_.id, error));
  }

  Engine& engine_;
  const Sample& sample_;
  std::span<const std::string> policies_;
  const Scope& scope_;
  bool alone_;
  const std::function<bool()>& go_on_;
  std::vector<int32_t> gold_;
  Request request_;  // what generation and likelihood have in common
  Distribution distribution_;
  std::vector<SampleRecord> records_;
};

}  // namespace

Result<std::vector<SampleRecord>> answer_sample(Engine& engine, const Sample& sample,
                                                std::span<const std::string> policies,
                                                const Scope& scope, bool alone,
                                                const std::function<bool()>& go_on) {
  return SampleRun(engine, sample, policies, scope, alone, go_on).run();
}

SampleRecord failed_record(std::string id, const Error& error) {
  SampleRecord record;
  record.id = std::move(id);
  record.finish = "failed";
  record.error = error.message;
  return record;
}

}  // namespace reprise::eval
