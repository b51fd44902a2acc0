// Whole templates against jinja2: our own in full, the collection by length and hash.
#include <cstdlib>

#include "base/data_folder.h"
#include "template_fixtures.h"

namespace reprise::test {
namespace {

TEST(TemplateGoldens, BuiltinTemplatesEqualJinja2) {
  const auto conversations = template_fixture("conversations.json");
  const auto goldens = template_fixture("builtin.json");
  for (const auto& [family, outputs] : goldens.items()) {
    ASSERT_FALSE(builtin_template(family).empty()) << family;
    for (const auto& [name, golden] : outputs.items()) {
      SCOPED_TRACE(family + " " + name);
      const Rendering made = render_template(builtin_template(family), conversations[name]);
      EXPECT_EQ(made.error, golden.is_null() ? "template_runtime" : "") << made.message;
      EXPECT_EQ(made.output, golden.is_null() ? "" : golden.get<std::string>());
    }
  }
  EXPECT_EQ(builtin_template("no such family"), "");
}

// The formats themselves, written down by hand.
TEST(TemplateGoldens, BuiltinTemplatesHaveTheirFamilysFormat) {
  const auto conversation = template_fixture("conversations.json")["system_turns"];
  const auto render = [&](const char* family) {
    return render_template(builtin_template(family), conversation).output;
  };
  EXPECT_EQ(render("chatml"),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n"
            "<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n"
            "<|im_start|>assistant\nD<|im_end|>\n<|im_start|>user\nE<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(render("llama2"),
            "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST] D </s>"
            "<s>[INST] E [/INST]");
  EXPECT_EQ(render("llama3"),
            "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nD<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nE<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(render("gemma"),
            "<s><start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n"
            "<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\nD<end_of_turn>\n"
            "<start_of_turn>user\nE<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(render("phi3"),
            "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n"
            "<|user|>\nC<|end|>\n<|assistant|>\nD<|end|>\n<|user|>\nE<|end|>\n<|assistant|>\n");
  EXPECT_EQ(render("mistral"),
            "<s>[INST] S\n\nA [/INST] B</s>[INST] C [/INST] D</s>[INST] E [/INST]");
}

TEST(TemplateGoldens, CollectionEqualsJinja2) {
  const char* data = test::data_folder();
  if (data == nullptr) GTEST_SKIP() << "set REPRISE_DATA to the folder with chat_templates/";
  const auto conversations = template_fixture("conversations.json");
  const auto corpus = template_fixture("corpus.json");
  ASSERT_GE(corpus.size(), 55u);
  size_t compared = 0;
  for (const auto& [file, goldens] : corpus.items()) {
    const std::string source = read_text(std::string(data) + "/chat_templates/" + file);
    ASSERT_EQ(fmt::format("{:016x}", fnv1a(source)), goldens["source"].get<std::string>()) << file;
    for (const auto& [name, golden] : goldens.items()) {
      if (name == "source") continue;
      SCOPED_TRACE(file + " " + name);
      const Rendering made = render_template(source, conversations[name]);
      if (golden.size() == 1) {
        EXPECT_EQ(made.error, golden[0].get<std::string>()) << made.output;
      } else {
        EXPECT_EQ(made.error, "") << made.message;
        EXPECT_EQ(made.output.size(), golden[0].get<size_t>()) << made.output;
        EXPECT_EQ(fmt::format("{:016x}", fnv1a(made.output)), golden[1].get<std::string>())
            << made.output;
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 800u);
}

}  // namespace
}  // namespace reprise::test
