#include "formats/tokenizer_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/gguf_builder.h"
#include "formats/safetensors_builder.h"
#include "formats/sentencepiece_builder.h"
#include "formats/tokenizer_json_text.h"

namespace reprise::test {
namespace {

using testing::ElementsAre;
using testing::Pair;

Result<TokenizerData> from_gguf(const GgufBuilder& builder) {
  const std::string bytes = builder.build();
  auto file = GgufFile::parse(as_bytes(bytes), "file");
  if (!file) return tl::unexpected<Error>(file.error());
  return read_gguf_tokenizer(*file);
}

TEST(GgufTokenizer, ReadsByteBpe) {
  const auto data = from_gguf(small_gguf());
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_EQ(data->model, TokenizerModel::kByteBpe);
  EXPECT_THAT(data->tokens, ElementsAre("a", "b", "ab", "<|im_end|>", "<s>"));
  EXPECT_THAT(data->merges, ElementsAre(Pair("a", "b")));
  EXPECT_EQ(data->kinds[3], TokenKind::kControl);
  EXPECT_EQ(data->bos, 4);
  EXPECT_TRUE(data->add_bos);
  EXPECT_FALSE(data->eos.has_value());
  EXPECT_THAT(data->end_of_turn, ElementsAre(3));
  ASSERT_EQ(data->added.size(), 2u);
  EXPECT_TRUE(data->added[0].special);
  EXPECT_FALSE(data->add_space_prefix);
}

TEST(GgufTokenizer, ReadsSentencePieceWithItsDefaults) {
  GgufBuilder builder;
  builder.add("tokenizer.ggml.model", "llama");
  builder.add_strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "<0x0A>", "a", " tool "});
  builder.add_array<float>("tokenizer.ggml.scores", {0, 0, 0, 0, -1, 0});
  builder.add_array<int32_t>("tokenizer.ggml.token_type", {2, 3, 3, 6, 1, 4});
  builder.add("tokenizer.ggml.bos_token_id", 1u).add("tokenizer.ggml.eos_token_id", 2u);
  builder.add("tokenizer.ggml.padding_token_id", 0xffffffffu);
  builder.add("tokenizer.ggml.eot_token_id", 4u);
  builder.add("tokenizer.chat_template", "{{ messages }}");
  const auto data = from_gguf(builder);
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_EQ(data->model, TokenizerModel::kSentencePieceBpe);
  EXPECT_TRUE(data->add_bos);
  EXPECT_FALSE(data->add_eos);
  EXPECT_TRUE(data->add_space_prefix);
  EXPECT_TRUE(data->byte_fallback);
  EXPECT_EQ(data->scores[4], -1.0f);
  EXPECT_FALSE(data->pad.has_value());
  EXPECT_THAT(data->end_of_turn, ElementsAre(4));
  EXPECT_FALSE(data->added.back().special);  // user-defined
  EXPECT_EQ(data->chat_template, "{{ messages }}");
}

TEST(GgufTokenizer, KeepsSpacesInsideMerges) {
  GgufBuilder builder;
  builder.add("tokenizer.ggml.model", "gpt2");
  builder.add_strings("tokenizer.ggml.tokens", {"a"});
  builder.add_strings("tokenizer.ggml.merges", {"  a", "a b c"});
  const auto data = from_gguf(builder);
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_THAT(data->merges, ElementsAre(Pair(" ", "a"), Pair("a", "b c")));
}

TEST(GgufTokenizer, DefaultsFollowThePreTokenizer) {
  const auto read = [](const char* pre) {
    GgufBuilder builder;
    builder.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", pre);
    builder.add_strings("tokenizer.ggml.tokens", {"a", "<s>"});
    builder.add_strings("tokenizer.ggml.merges", {});
    builder.add("tokenizer.ggml.bos_token_id", 1u);
    return *from_gguf(builder);
  };
  for (const char* pre :
       {"llama-bpe", "llama-v3", "falcon3", "pixtral", "lfm2", "midm-2.0", "falcon-h1", "tekken"}) {
    EXPECT_TRUE(read(pre).ignore_merges) << pre;
    EXPECT_TRUE(read(pre).add_bos) << pre;
  }
  for (const char* pre : {"gpt-2", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}) {
    EXPECT_FALSE(read(pre).ignore_merges) << pre;
    EXPECT_FALSE(read(pre).add_bos) << pre;
  }
}

TEST(GgufTokenizer, TokensThatEndAnAnswerAreControlTokens) {
  GgufBuilder builder;
  builder.add("tokenizer.ggml.model", "gpt2");
  builder.add_strings("tokenizer.ggml.tokens", {"a", "<|im_end|>", "<|eot_id|>", "<|other|>"});
  builder.add_array<int32_t>("tokenizer.ggml.token_type", {1, 1, 4, 1});
  builder.add_strings("tokenizer.ggml.merges", {});
  const auto data = from_gguf(builder);
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_THAT(data->kinds, ElementsAre(TokenKind::kNormal, TokenKind::kControl, TokenKind::kControl,
                                       TokenKind::kNormal));
  EXPECT_THAT(data->end_of_turn, ElementsAre(1, 2));
  ASSERT_EQ(data->added.size(), 2u);
  EXPECT_TRUE(data->added[0].special);
}

TEST(GgufTokenizer, Phi3MarkersTakeTheWhiteSpaceBehindThem) {
  const std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>"};
  const auto stripping = [&](const char* architecture) {
    GgufBuilder builder;
    builder.add("general.architecture", architecture).add("tokenizer.ggml.model", "llama");
    builder.add_strings("tokenizer.ggml.tokens", tokens);
    builder.add_array<float>("tokenizer.ggml.scores", {0, 0, 0, 0, 0});
    builder.add_array<int32_t>("tokenizer.ggml.token_type", {2, 3, 4, 3, 3});
    const TokenizerData data = *from_gguf(builder);
    std::vector<std::string> texts;
    for (const AddedToken& token : data.added) {
      if (token.rstrip) texts.push_back(token.text);
    }
    return texts;
  };
  EXPECT_THAT(stripping("phi3"), ElementsAre("</s>", "<|user|>"));
  EXPECT_THAT(stripping("llama"), ElementsAre());
}

TEST(TokenizerJson, ReadsBpe) {
  const auto data = parse_tokenizer_json(small_tokenizer_json(), "t");
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_EQ(data->model, TokenizerModel::kByteBpe);
  EXPECT_THAT(data->tokens, ElementsAre("a", "b", "ab", "<0x41>", "<s>", "<|im_end|>", "  "));
  EXPECT_EQ(data->kinds[3], TokenKind::kByte);
  EXPECT_EQ(data->kinds[4], TokenKind::kControl);
  EXPECT_EQ(data->kinds[6], TokenKind::kUserDefined);
  EXPECT_THAT(data->merges, ElementsAre(Pair("a", "b")));
  EXPECT_TRUE(data->byte_fallback);
  ASSERT_EQ(data->added.size(), 3u);
  EXPECT_TRUE(data->added[1].rstrip);
  EXPECT_TRUE(data->added[2].normalized);
  EXPECT_EQ(data->bos, 4);
  EXPECT_TRUE(data->add_bos);
  EXPECT_FALSE(data->add_eos);
  EXPECT_THAT(data->end_of_turn, ElementsAre(5));
}

TEST(TokenizerJson, FlattensItsPipeline) {
  const auto data = parse_tokenizer_json(small_tokenizer_json(), "t");
  ASSERT_TRUE(data) << data.error().message;
  ASSERT_EQ(data->normalizers.size(), 2u);
  EXPECT_EQ(data->normalizers[0].kind, "NFC");
  EXPECT_EQ(data->normalizers[1].pattern, " ");
  EXPECT_FALSE(data->normalizers[1].pattern_is_regex);
  EXPECT_EQ(data->normalizers[1].content, "_");
  ASSERT_EQ(data->pre_tokenizers.size(), 2u);
  EXPECT_EQ(data->pre_tokenizers[0].pattern, "\\d+");
  EXPECT_TRUE(data->pre_tokenizers[0].pattern_is_regex);
  EXPECT_TRUE(data->pre_tokenizers[0].invert);
  EXPECT_EQ(data->pre_tokenizers[0].behavior, "Isolated");
  EXPECT_TRUE(data->pre_tokenizers[1].add_prefix_space);
  EXPECT_FALSE(data->pre_tokenizers[1].use_regex);
  ASSERT_EQ(data->decoders.size(), 1u);
  EXPECT_EQ(data->decoders[0].start, 1u);
}

TEST(TokenizerJson, ReadsUnigramAndMetaspace) {
  TokenizerJson parts;
  parts.model = R"({"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1.5],["b",-2]]})";
  parts.added = "[]";
  parts.pre_tokenizer = R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"first"})";
  parts.post_processor = "null";
  const auto data = parse_tokenizer_json(parts.text(), "t");
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_EQ(data->model, TokenizerModel::kUnigram);
  EXPECT_THAT(data->scores, ElementsAre(0.0f, -1.5f, -2.0f));
  EXPECT_EQ(data->unknown, 0);
  EXPECT_EQ(data->kinds[0], TokenKind::kUnknown);
  EXPECT_EQ(data->pre_tokenizers[0].content, "▁");
  EXPECT_EQ(data->pre_tokenizers[0].prepend_scheme, "first");
}

TEST(TokenizerJson, AcceptsMergePairsHolesAndMissingParts) {
  const auto data = parse_tokenizer_json(
      R"({"model":{"vocab":{"a b":0,"c":1,"x":9},"merges":[["a b","c"]]}})", "t");
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_THAT(data->merges, ElementsAre(Pair("a b", "c")));
  ASSERT_EQ(data->tokens.size(), 10u);
  EXPECT_EQ(data->kinds[5], TokenKind::kUnused);
}

TEST(SentencePiece, ReadsAModel) {
  const auto data = parse_sentencepiece(small_sentencepiece().bytes(), "t");
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_EQ(data->model, TokenizerModel::kSentencePieceBpe);
  EXPECT_THAT(data->tokens, ElementsAre("<unk>", "<s>", "</s>", "<0x41>", "a", "b", "ab"));
  EXPECT_THAT(data->scores, ElementsAre(0, 0, 0, 0, -2, -3, -1));
  EXPECT_EQ(data->kinds[0], TokenKind::kUnknown);
  EXPECT_EQ(data->kinds[3], TokenKind::kByte);
  EXPECT_EQ(data->unknown, 0);
  EXPECT_EQ(data->bos, 1);
  EXPECT_EQ(data->eos, 2);
  EXPECT_FALSE(data->pad.has_value());
  EXPECT_TRUE(data->byte_fallback);
  EXPECT_TRUE(data->add_bos);
  EXPECT_TRUE(data->add_space_prefix);
  EXPECT_FALSE(data->remove_extra_whitespaces);
}

TEST(SentencePiece, TakesNegativeIdsAsAbsent) {
  ProtobufWriter model = small_sentencepiece();
  model.text(2, ProtobufWriter().number(3, 2).number(41, ~uint64_t{0}).bytes());
  const auto data = parse_sentencepiece(model.bytes(), "t");
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_FALSE(data->bos.has_value());
  EXPECT_FALSE(data->add_bos);
}

TEST(FolderTokenizer, CombinesItsFiles) {
  TempFolder folder;
  folder.add("tokenizer.json", small_tokenizer_json());
  folder.add("tokenizer_config.json",
             R"({"bos_token":{"content":"<s>"},"eos_token":"<|im_end|>","add_bos_token":false,)"
             R"("pad_token":"[PAD]","chat_template":[{"name":"tool_use","template":"t"},)"
             R"({"name":"default","template":"d"}]})");
  folder.add("generation_config.json", R"({"eos_token_id":[5,2]})");
  const auto data = read_folder_tokenizer(folder.path());
  ASSERT_TRUE(data) << data.error().message;
  EXPECT_EQ(data->bos, 4);
  EXPECT_EQ(data->eos, 5);
  EXPECT_FALSE(data->add_bos);
  EXPECT_THAT(data->end_of_turn, ElementsAre(2));
  EXPECT_EQ(data->chat_template, "d");
  folder.add("chat_template.jinja", "j");
  EXPECT_EQ(read_folder_tokenizer(folder.path())->chat_template, "j");
}

TEST(FolderTokenizer, TakesAProcessorsTemplateWhereThereIsNoOther) {
  TempFolder folder;
  folder.add("tokenizer.json", small_tokenizer_json());
  folder.add("chat_template.json", R"({"chat_template":"p"})");
  EXPECT_EQ(read_folder_tokenizer(folder.path())->chat_template, "p");
  folder.add("tokenizer_config.json", R"({"chat_template":"t"})");
  EXPECT_EQ(read_folder_tokenizer(folder.path())->chat_template, "t");
}

TEST(FolderTokenizer, EndsAnswersAsConfigJsonSaysWithoutAGenerationConfig) {
  TempFolder folder;
  folder.add("tokenizer.json", small_tokenizer_json());
  folder.add("config.json", R"({"eos_token_id":[2,1,99,-1]})");  // older ones are not exact
  EXPECT_THAT(read_folder_tokenizer(folder.path())->end_of_turn, ElementsAre(1, 2));
  folder.add("generation_config.json", R"({"eos_token_id":0})");
  EXPECT_THAT(read_folder_tokenizer(folder.path())->end_of_turn, ElementsAre(0));
}

TEST(FolderTokenizer, ExtendsASentencePieceModel) {
  TempFolder folder;
  folder.add("tokenizer.model", small_sentencepiece().bytes());
  folder.add("tokenizer_config.json",
             R"({"added_tokens_decoder":{"7":{"content":"<|end|>","special":true,"rstrip":true},)"
             R"("1":{"content":"<s>","special":true}},"eos_token":"</s>"})");
  folder.add("special_tokens_map.json", R"({"eos_token":"<|end|>","unk_token":"<unk>"})");
  const auto data = read_folder_tokenizer(folder.path());
  ASSERT_TRUE(data) << data.error().message;
  ASSERT_EQ(data->tokens.size(), 8u);
  EXPECT_EQ(data->kinds[7], TokenKind::kControl);
  EXPECT_EQ(data->eos, 2);
  EXPECT_THAT(data->end_of_turn, ElementsAre(7));
  ASSERT_EQ(data->added.size(), 3u);
  EXPECT_TRUE(data->added[2].rstrip);
}

TEST(FolderTokenizer, IsMissingFromAnEmptyFolder) {
  const TempFolder folder;
  EXPECT_EQ(read_folder_tokenizer(folder.path()).error().code, ErrorCode::kTokenizerMissing);
}

}  // namespace
}  // namespace reprise::test
