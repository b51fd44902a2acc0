#include "engine/prompt_format.h"

#include <gtest/gtest.h>

#include <fstream>

#include "engine/tiny_model.h"
#include "reprise/engine.h"
#include "text/chat_template.h"

namespace reprise {
namespace {

TokenizerData vocabulary(std::vector<std::string> tokens,
                         TokenizerModel model = TokenizerModel::kByteBpe) {
  TokenizerData data;
  data.model = model;
  data.tokens = std::move(tokens);
  return data;
}

void expect_format(std::string_view name, const TokenizerData& tokenizer,
                   std::string_view architecture) {
  const auto source = choose_template({}, tokenizer, architecture);
  ASSERT_TRUE(source);
  EXPECT_EQ(*source, builtin_template(name)) << name;
}

TEST(ChooseTemplate, SpecialTokensTellTheFamily) {
  expect_format("llama3", vocabulary({"a", "<|start_header_id|>", "<|eot_id|>"}), "llama");
  expect_format("chatml", vocabulary({"<|im_start|>", "<|im_end|>"}), "llama");
  expect_format("qwen", vocabulary({"<|im_start|>", "<|im_end|>"}), "qwen2");
  expect_format("qwen", vocabulary({"<|im_start|>"}), "Qwen3ForCausalLM");
  expect_format("gemma", vocabulary({"<start_of_turn>"}), "llama");
  expect_format("phi3", vocabulary({"<|user|>", "<|end|>"}), "Phi3ForCausalLM");
  expect_format("granite", vocabulary({"<|start_of_role|>"}), "granite");
  expect_format("mistral", vocabulary({"[INST]", "[/INST]"}), "llama");
}

TEST(ChooseTemplate, ElseTheArchitectureDoes) {
  const auto llama2 = vocabulary({"<s>"}, TokenizerModel::kSentencePieceBpe);
  expect_format("llama2", llama2, "llama");
  expect_format("llama2", llama2, "LlamaForCausalLM");
  expect_format("mistral", llama2, "MistralForCausalLM");
  expect_format("gemma", llama2, "gemma2");
  expect_format("phi3", llama2, "phi3");
  expect_format("chatml", vocabulary({"a"}), "llama");
}

TEST(ChooseTemplate, TheModelsOwnComesBeforeItsFamilys) {
  auto own = vocabulary({"<|im_start|>"});
  own.chat_template = "{% broken";  // fails each prompt, not the model
  EXPECT_EQ(choose_template({}, own, "llama").value(), own.chat_template);
  EXPECT_EQ(choose_template("zephyr", own, "llama").value(), builtin_template("zephyr"));
}

TEST(ChooseTemplate, AFileIsReadAndChecked) {
  const std::string path = ::testing::TempDir() + "chosen.jinja";
  const auto chosen = [&](std::string_view text) {
    std::ofstream(path, std::ios::binary) << text;
    return choose_template(path, vocabulary({}), "llama");
  };
  EXPECT_EQ(chosen("{{ messages[0].content }}").value(), "{{ messages[0].content }}");
  const auto broken = chosen("{% if %}");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, ErrorCode::kTemplateSyntax);
  EXPECT_NE(broken.error().message.find(path), std::string::npos);
  EXPECT_EQ(chosen("\xff").error().code, ErrorCode::kBadString);
  for (const char* empty : {"", " \n"}) {
    const auto nothing = chosen(empty);
    ASSERT_FALSE(nothing);
    EXPECT_EQ(nothing.error().code, ErrorCode::kTemplateSyntax);
    EXPECT_NE(nothing.error().message.find("empty template"), std::string::npos);
  }
}

TEST(ChooseTemplate, AnUnknownNameSaysWhichThereAre) {
  const auto unknown = choose_template("lama3", vocabulary({}), "llama");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kFileNotFound);
  EXPECT_NE(unknown.error().message.find("did you mean llama3?"), std::string::npos);
  for (const std::string_view name : builtin_template_names()) {
    EXPECT_NE(unknown.error().message.find(name), std::string::npos) << name;
  }
}

TEST(ChooseTemplate, TheOptionsHelpNamesEveryBuiltInFormat) {
  std::string help;
  EngineOptions options;
  visit_options(options, [&](const OptionSpec& spec, auto&) {
    if (spec.name == "chat-template") help = spec.help;
  });
  for (const std::string_view name : builtin_template_names()) {
    EXPECT_NE(help.find(name), std::string::npos) << name;
  }
}

TEST(ChooseTemplate, AnEngineRendersWithWhatItsOptionsName) {
  const std::vector<Message> messages = {{"user", "hi"}};
  EngineOptions options;
  options.model = test::tiny_model();
  const auto prompt = [&](const std::string& format) {
    options.chat_template = format;
    const auto engine = Engine::load(options);
    EXPECT_TRUE(engine) << engine.error().message;
    return (*engine)->chat_prompt(messages).value();
  };
  EXPECT_EQ(prompt(""), prompt("chatml"));
  EXPECT_NE(prompt("vicuna"), prompt("chatml"));
  options.chat_template = "lama3";
  EXPECT_EQ(Engine::load(options).error().code, ErrorCode::kFileNotFound);
}

}  // namespace
}  // namespace reprise
