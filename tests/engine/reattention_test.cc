// ReAttention through the whole engine: every scaling of rotation, and conversations without end.
#include <gtest/gtest.h>

#include "engine/answers.h"
#include "engine/tiny_model.h"

namespace reprise::test {
namespace {

constexpr size_t kTrained = 2048;  // tokens, of the models here

double figure(const Answer& answer, std::string_view name) {
  for (const auto& [each, value] : answer.counters.policy) {
    if (each == name) return value;
  }
  return 0.0;
}

class ReAttentionScaling : public testing::TestWithParam<std::string> {
 protected:
  static EngineOptions options() {
    EngineOptions options = tiny_options();
    options.model = tiny_model({.rope_scaling = GetParam()});
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Scalings, ReAttentionScaling,
                         testing::Values("linear", "yarn", "llama3", "longrope", "partial"),
                         [](const auto& test) { return test.param; });

TEST_P(ReAttentionScaling, ReadingEverythingIsFullAttention) {
  const auto engine = tiny_engine(options());
  const Request request = request_of(tiny_prompt(600));
  const Answer selected =
      answer_of(*engine, request,
                "reattention:stride=1,sink=16,local=256,span=1024,spans=1,activate=1,agree=0");
  EXPECT_EQ(selected.tokens, answer_of(*engine, request, "full:keys=position-free").tokens);
  EXPECT_EQ(figure(selected, "reattention_scope"), 612.0);  // on average over 23 decoded tokens
}

TEST_P(ReAttentionScaling, GoesBeyondTheTrainedLengthByItself) {
  const auto engine = tiny_engine(options());
  const Answer answer = answer_of(*engine, request_of(tiny_prompt(2 * kTrained)), "reattention");
  EXPECT_EQ(answer.tokens.size(), 24u);
  EXPECT_GT(figure(answer, "reattention_scope"), 300.0);
  EXPECT_LE(figure(answer, "reattention_scope"), kTrained);
}

// The last rows were read as part of a cell, and are again.
TEST(ReAttentionEngine, APromptThatIsAskedAgainIsAnsweredAlike) {
  const auto engine = tiny_engine();
  for (const uint32_t alone : {0u, 5u, 48u}) {
    const auto session =
        *engine->open(fmt::format("reattention:activate=128,local=64,chunk=64,alone={}", alone));
    std::vector<std::vector<float>> logits;
    for (const uint32_t length : {620u, 620u, 800u, 620u}) {
      Request request = request_of(tiny_prompt(length), 1);
      request.on_logits = [&](std::span<const float> given) {
        logits.emplace_back(given.begin(), given.end());
      };
      answer_of(*session, request);
    }
    EXPECT_EQ(logits[0], logits[1]) << alone;
    if (alone == 0) {
      EXPECT_EQ(logits[0], logits[3]);
    }
  }
}

// The short factors were trained for 512 tokens, whatever the long ones reach.
TEST(ReAttentionEngine, LongropesShortFactorsAreNotReadBeyondTheirLength) {
  EngineOptions options = tiny_options();
  options.model = tiny_model({.rope_scaling = "longrope"});
  options.ctx = 400;
  const auto engine = tiny_engine(options);
  const Answer answer = answer_of(*engine, request_of(tiny_prompt(700)), "reattention");
  EXPECT_GT(figure(answer, "reattention_scope"), 100.0);
  EXPECT_LE(figure(answer, "reattention_scope"), 512.0);
}

/// A model of one layer that answers '?' with the capital letter that it read before: only
/// questions look for something, only capitals are found, and values are the tokens themselves.
std::string recalling_model() {
  constexpr uint32_t kHidden = 64, kHeadDim = 32, kHeads = 2, kCapital = 62, kQuestion = 63;
  const std::string path = scratch_folder() + "/recalling.gguf";
  GgufBuilder builder;
  builder.add("general.architecture", "llama").add("llama.block_count", uint32_t{1});
  builder.add("llama.context_length", uint32_t{kTrained});
  builder.add("llama.embedding_length", kHidden).add("llama.feed_forward_length", kHidden);
  builder.add("llama.attention.head_count", kHeads);
  builder.add("llama.attention.head_count_kv", uint32_t{1});
  builder.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  builder.add("llama.attention.key_length", kHeadDim);
  builder.add("llama.attention.value_length", kHeadDim);
  builder.add("llama.rope.dimension_count", kHeadDim / 2);  // what is looked for is not rotated
  add_byte_tokenizer(builder);
  const auto matrix = [&](const char* name, size_t rows, size_t columns, auto&& value) {
    std::vector<float> values;
    for (size_t i = 0; i < rows * columns; ++i) values.push_back(value(i / columns, i % columns));
    builder.tensor(name, {rows, columns}, values);
  };
  std::mt19937 random(5);
  matrix("token_embd.weight", byte_tokens().size(), kHidden, [&](size_t token, size_t dim) {
    if (dim == kCapital) return token >= 'A' && token <= 'Z' ? 8.0f : 0.0f;
    if (dim == kQuestion) return token == '?' ? 8.0f : 0.0f;
    return random() % 2 == 0 ? 1.0f : -1.0f;
  });
  const auto from_mark = [](size_t mark) {
    return [mark](size_t row, size_t column) {
      return row % kHeadDim == kHeadDim - 1 && column == mark ? 2.0f : 0.0f;
    };
  };
  const auto diagonal = [](float value) {
    return [value](size_t row, size_t column) { return row == column ? value : 0.0f; };
  };
  matrix("blk.0.attn_q.weight", kHeads * kHeadDim, kHidden, from_mark(kQuestion));
  matrix("blk.0.attn_k.weight", kHeadDim, kHidden, from_mark(kCapital));
  matrix("blk.0.attn_v.weight", kHeadDim, kHidden, diagonal(1.0f));
  matrix("blk.0.attn_output.weight", kHidden, kHeads * kHeadDim,
         [](size_t row, size_t column) { return row == column && row < kHeadDim ? 20.0f : 0.0f; });
  for (const char* name : {"gate", "up", "down"}) {
    matrix(("blk.0.ffn_" + std::string(name) + ".weight").c_str(), kHidden, kHidden,
           diagonal(0.0f));
  }
  for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"})
    builder.tensor(name, {kHidden}, std::vector<float>(kHidden, 1.0f));
  builder.write(path);
  return path;
}

/// What is answered to the question after each of many turns, in the first of which 'K' is named.
/// A fork is asked, so that the conversation does not hold the answer. It grows to five times what
/// the model was trained for.
std::string answers_of_turns(Engine& engine, const char* policy) {
  const auto session = *engine.open(policy);
  std::mt19937 random(9);
  std::vector<int32_t> tokens;
  std::string answers;
  while (tokens.size() < 5 * kTrained) {
    const size_t held = tokens.size();
    for (size_t i = 0; i < 500; ++i) {
      tokens.push_back(static_cast<int32_t>('a' + random() % 26));
      if (held == 0 && i == 100) tokens.push_back('K');
    }
    const Answer said = answer_of(*session, request_of(tokens, 1));
    EXPECT_GE(said.counters.reused_tokens + 1, held);  // the last answer's token is read first
    tokens.insert(tokens.end(), said.tokens.begin(), said.tokens.end());
    std::vector<int32_t> question = tokens;
    question.push_back('?');
    answers += answer_of(*session->fork(), request_of(question, 1)).text;
  }
  return answers;
}

TEST(ReAttentionEngine, AConversationPastEveryLimitRecallsItsFirstTurn) {
  EngineOptions options = tiny_options();
  options.model = recalling_model();
  const auto engine = tiny_engine(options);
  EXPECT_EQ(answers_of_turns(*engine, "reattention"), std::string(21, 'K'));
  const std::string forgetful = answers_of_turns(*engine, "streaming:sink=64,window=1024");
  EXPECT_EQ(forgetful.substr(0, 2), "KK");
  EXPECT_EQ(forgetful.find('K', 3), std::string::npos) << "a window loses it";
}

}  // namespace
}  // namespace reprise::test
