// Prompts of samples, scopes, and what counts as the answer.
#include "eval/run/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/tiny_model.h"
#include "eval/run/prompt.h"
#include "eval/settings.h"

namespace reprise::eval {
namespace {

const std::function<bool()> kGoOn = [] { return true; };
constexpr const char* kTight = "random:budget=16";  // decodes by one page, reads prompts densely

// One token each letter: the tokenizer merges none of them.
std::string text_of(size_t length) {
  std::string text;
  for (const int32_t token : test::tiny_prompt(length)) text += static_cast<char>('i' + token % 9);
  return text;
}

Sample sample_of(size_t length) {
  Sample sample;
  sample.id = "s";
  sample.messages = {{"user", text_of(length)}};
  sample.max_tokens = 8;
  sample.score = [](std::string_view answer) -> Scores {
    return {{"length", static_cast<double>(answer.size())}};
  };
  return sample;
}

class AnswersTest : public testing::Test {
 protected:
  std::vector<SampleRecord> answer(const Sample& sample, const std::string& scope,
                                   const std::vector<std::string>& policies = {"full", kTight}) {
    auto records = answer_sample(*engine_, sample, policies, *Scope::parse(scope), false, kGoOn);
    EXPECT_TRUE(records);
    return std::move(*records);
  }
  double nll(const SampleRecord& record) { return find_number(record.scores, "nll"); }

  std::unique_ptr<Engine> engine_ = test::tiny_engine();
};

TEST(Scope, Parse) {
  EXPECT_TRUE(Scope::parse("decode")->generates);
  EXPECT_FALSE(Scope::parse("teacher")->generates);
  EXPECT_EQ(Scope::parse("tail:32")->tail, 32u);
  EXPECT_TRUE(Scope::parse("tail:32")->generates);
  EXPECT_EQ(Scope::parse("teacher:32")->tail, 32u);
  EXPECT_FALSE(Scope::parse("teacher:32")->generates);
  for (const char* wrong :
       {"", "tail", "tail:", "tail:0", "tail:x", "prefill", "teacher:", "teacher:x", "decode:8"})
    EXPECT_EQ(Scope::parse(wrong).error().code, ErrorCode::kInvalidArgument) << wrong;
}

TEST_F(AnswersTest, ThePromptIsTheTemplatesPlusTheAnswersBeginning) {
  Sample sample = sample_of(50);
  sample.answer_prefix = "It is";
  const auto prompt = build_prompt(*engine_, sample);
  ASSERT_TRUE(prompt);
  std::vector<int32_t> expected = *engine_->chat_prompt(sample.messages);
  for (const char c : std::string("It is")) expected.push_back(static_cast<unsigned char>(c));
  EXPECT_EQ(prompt->tokens, expected);
  EXPECT_FALSE(prompt->truncated);
}

TEST_F(AnswersTest, LongPromptsLoseTheirMiddleAndNothingOfTheTemplate) {
  EngineOptions options = test::tiny_options();
  options.ctx = 256;
  engine_ = test::tiny_engine(options);
  Sample sample = sample_of(0);
  sample.cut_middle = true;
  const size_t around = engine_->chat_prompt(sample.messages)->size();
  const size_t room = 256 - sample.max_tokens - around;
  for (const size_t length : {room - 1, room, room + 1, room + 300}) {
    const std::string text = text_of(length);
    ASSERT_EQ(engine_->tokenize(text).size(), length);
    sample.messages[0].content = text;
    const auto prompt = build_prompt(*engine_, sample);
    ASSERT_TRUE(prompt);
    EXPECT_EQ(prompt->truncated, length > room);
    EXPECT_EQ(prompt->tokens.size(), std::min(length, room) + around);
    if (length <= room) continue;
    const size_t head = room / 2 + room % 2;
    const Message kept = {"user", text.substr(0, head) + text.substr(length - room / 2)};
    EXPECT_EQ(prompt->tokens, *engine_->chat_prompt({&kept, 1}));
  }
}

TEST_F(AnswersTest, PlainPromptsAreCutOnTheirTokens) {
  EngineOptions options = test::tiny_options();
  options.ctx = 256;
  engine_ = test::tiny_engine(options);
  Sample sample = sample_of(1000);
  sample.plain = sample.cut_middle = true;
  const auto prompt = build_prompt(*engine_, sample);
  ASSERT_TRUE(prompt && prompt->truncated);
  const std::vector<int32_t> all = engine_->tokenize(sample.messages[0].content);
  std::vector<int32_t> kept(all.begin(), all.begin() + 124);
  kept.insert(kept.end(), all.end() - 124, all.end());
  EXPECT_EQ(prompt->tokens, kept);
}

TEST_F(AnswersTest, APlainPromptWithoutRoomFails) {
  Sample sample = sample_of(100);
  sample.plain = sample.cut_middle = true;
  sample.max_tokens = engine_->info().context;
  for (const char* scope : {"decode", "tail:32"}) {
    const SampleRecord record = answer(sample, scope, {"full"})[0];
    EXPECT_TRUE(record.failed());
    EXPECT_NE(record.error.find("raise --ctx"), std::string::npos) << record.error;
  }
}

TEST_F(AnswersTest, WhatIsTooLongFails) {
  Sample sample = sample_of(3000);
  for (const SampleRecord& record : answer(sample, "decode")) {
    EXPECT_EQ(record.finish, "failed");
    EXPECT_THAT(record.error, testing::HasSubstr("2048"));
    EXPECT_TRUE(record.scores.empty());
  }
  sample.cut_middle = true;
  for (const SampleRecord& record : answer(sample, "decode")) {
    EXPECT_TRUE(record.truncated);
    EXPECT_NE(record.finish, "failed") << record.error;
  }
}

TEST_F(AnswersTest, WhatFailedAfterItsAnswerHasNoNumbers) {
  Sample sample = sample_of(1900);
  sample.gold = text_of(300);  // the answer fits in the context, this does not
  for (const SampleRecord& record : answer(sample, "decode")) {
    EXPECT_EQ(record.finish, "failed");
    EXPECT_THAT(record.error, testing::HasSubstr("the gold answer does not fit"));
    EXPECT_TRUE(record.scores.empty());
    EXPECT_TRUE(record.counters.empty());
    EXPECT_TRUE(record.timing.empty());
  }
}

TEST_F(AnswersTest, UnderDecodeTheFirstTokenIsFullAttentions) {
  Sample sample = sample_of(400);
  sample.max_tokens = 1;
  sample.gold = "x";
  const auto decode = answer(sample, "decode");
  EXPECT_EQ(decode[0].prediction, decode[1].prediction);
  EXPECT_EQ(nll(decode[0]), nll(decode[1]));
  const auto tail = answer(sample, "tail:32");
  const double rounding = std::abs(nll(tail[0]) - nll(decode[0]));  // of another order of sums
  const double loss = std::abs(nll(tail[1]) - nll(decode[0]));      // 32 tokens read one page each
  EXPECT_GT(loss, 10 * rounding);
  EXPECT_GT(find_number(tail[0].counters, "kv_bytes_per_token"),
            find_number(tail[1].counters, "kv_bytes_per_token"));
}

TEST_F(AnswersTest, GreedyIsWhetherTheAnswerIsTheGoldOne) {
  Sample sample = sample_of(400);
  sample.max_tokens = 3;
  const std::string answered = answer(sample, "decode", {"full"})[0].prediction;
  ASSERT_EQ(engine_->tokenize(answered).size(), 3u) << answered;
  for (const std::string& gold : {answered, answered.substr(0, 2) + "x"}) {
    sample.gold = gold;
    for (const char* scope : {"decode", "teacher"}) {
      EXPECT_EQ(find_number(answer(sample, scope, {"full"})[0].scores, "greedy"),
                gold == answered ? 1.0 : 0.0)
          << gold;
    }
  }
}

TEST_F(AnswersTest, TheTailIsNoPartOfTheAnswer) {
  Sample sample = sample_of(300);
  const auto decode = answer(sample, "decode", {"full"}),
             tail = answer(sample, "tail:40", {"full"});
  EXPECT_EQ(tail[0].prompt_tokens, decode[0].prompt_tokens);
  EXPECT_EQ(tail[0].generated_tokens, 8u) << "the template's own end tokens end nothing";
  EXPECT_EQ(tail[0].prediction, decode[0].prediction);
  EXPECT_EQ(find_number(tail[0].scores, "length"), tail[0].prediction.size());
}

TEST_F(AnswersTest, StopStringsEndTheAnswerNotTheTail) {
  Sample sample = sample_of(300);
  sample.max_tokens = 24;
  const std::string whole = answer(sample, "decode", {"full"})[0].prediction;
  ASSERT_GT(whole.size(), 4u);
  sample.stop = {whole.substr(3, 2)};
  const size_t at = whole.find(sample.stop[0]);
  for (const char* scope : {"decode", "tail:40"}) {
    const auto record = answer(sample, scope, {"full"})[0];
    EXPECT_EQ(record.prediction, whole.substr(0, at)) << scope;
    EXPECT_EQ(record.finish, "stop") << scope;
  }
  sample.stop = {sample.messages[0].content.substr(290, 4)};  // only the tail has it
  EXPECT_EQ(answer(sample, "tail:40", {"full"})[0].prediction, whole);
}

TEST_F(AnswersTest, GoldLikelihoodIsThatOfForcedTokens) {
  Sample sample = sample_of(200);
  sample.gold = "gold";
  Request request;
  request.prompt = build_prompt(*engine_, sample)->tokens;
  request.forced = engine_->tokenize(sample.gold, false, false);
  request.max_tokens = 4;
  double expected = 0;
  size_t i = 0;
  request.on_logits = [&](std::span<const float> logits) {
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    expected += std::log(sum) - static_cast<double>(logits[request.forced[i++]]);
  };
  ASSERT_TRUE((*engine_->open())->generate(request));
  for (const char* scope : {"decode", "teacher"})
    EXPECT_NEAR(nll(answer(sample, scope)[0]), expected / 4, 1e-6) << scope;
  EXPECT_TRUE(answer(sample, "teacher")[0].prediction.empty());
  const auto tail = answer(sample, "tail:40"), teacher = answer(sample, "teacher:40");
  for (size_t policy = 0; policy < 2; ++policy)
    EXPECT_EQ(nll(teacher[policy]), nll(tail[policy])) << policy;
  EXPECT_NE(nll(teacher[1]), nll(answer(sample, "teacher")[1])) << "the tail is not decoded";
  EXPECT_TRUE(teacher[0].prediction.empty());
  sample.gold.clear();
  EXPECT_EQ(answer(sample, "teacher")[0].finish, "failed");
}

}  // namespace
}  // namespace reprise::eval
