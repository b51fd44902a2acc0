#include "formats/bad_files.h"
#include "formats/tokenizer_data.h"
#include "formats/tokenizer_json_text.h"

namespace reprise::test {
namespace {

using enum ErrorCode;
using namespace std::string_literals;

BadFile bad(std::string name, ErrorCode code, std::string text) {
  return {"tokenizer_json_"s + std::move(name), code,
          [text = std::move(text)] { return status_of(parse_tokenizer_json(text, kBadName)); }};
}
BadFile bad_model(std::string name, ErrorCode code, std::string model) {
  return bad("model_"s + std::move(name), code, TokenizerJson{.model = std::move(model)}.text());
}
// A BPE model with three tokens and a spoiled rest.
BadFile bad_bpe(std::string name, ErrorCode code, const std::string& rest) {
  return bad_model(std::move(name), code,
                   R"({"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"c":3},)"s + rest + "}");
}
BadFile bad_vocab(std::string name, ErrorCode code, const std::string& vocab) {
  return bad_model("vocab_"s + std::move(name), code,
                   R"({"type":"BPE","merges":[],"vocab":)"s + vocab + "}");
}
BadFile bad_unigram(std::string name, ErrorCode code, const std::string& rest) {
  return bad_model("unigram_"s + std::move(name), code, R"({"type":"Unigram",)"s + rest + "}");
}
BadFile bad_added(std::string name, ErrorCode code, std::string added) {
  return bad("added_"s + std::move(name), code, TokenizerJson{.added = std::move(added)}.text());
}
BadFile bad_steps(std::string name, ErrorCode code, std::string steps) {
  return bad("pre_tokenizer_"s + std::move(name), code,
             TokenizerJson{.pre_tokenizer = std::move(steps)}.text());
}
BadFile bad_post(std::string name, ErrorCode code, std::string processor) {
  return bad("post_processor_"s + std::move(name), code,
             TokenizerJson{.post_processor = std::move(processor)}.text());
}

std::string nested_sequences(int depth) {
  std::string open, close;
  for (int i = 0; i < depth; ++i) {
    open += R"({"type":"Sequence","pretokenizers":[)";
    close += "]}";
  }
  return open + R"({"type":"Digits"})" + close;
}

std::string many(std::string_view item, int count) {
  std::string list;
  for (int i = 0; i < count; ++i) list.append(i > 0 ? "," : "").append(item);
  return list;
}

std::vector<BadFile> bad_vocabularies() {
  return {
      bad("empty", kBadJson, ""),
      bad("spaces", kBadJson, "   "),
      bad("list", kBadJson, "[]"),
      bad("not_utf8", kBadJson, "{\"model\":\"\xff\"}"),
      bad("unclosed", kBadJson, "{\"model\":{"),
      bad("deep_unclosed", kBadJson, R"({"model":)"s + std::string(1000000, '[')),
      bad("deep", kTooDeep,
          R"({"model":)"s + std::string(1000000, '[') + std::string(1000000, ']') + "}"),
      bad("no_model", kBadJson, "{}"),
      bad("model_number", kBadJson, TokenizerJson{.model = "1"}.text()),
      bad_model("type_wordpiece", kUnsupportedTokenizer, R"({"type":"WordPiece","vocab":{}})"),
      bad_model("type_number", kBadJson, R"({"type":1})"),
      bad_model("untyped", kUnsupportedTokenizer, R"({"vocab":{}})"),
      bad_vocab("list", kBadJson, "[]"),
      bad_vocab("text_id", kBadJson, R"({"a":"0"})"),
      bad_vocab("negative_id", kBadValue, R"({"a":-1})"),
      bad_vocab("huge_id", kBadValue, R"({"a":2147483648})"),
      bad_vocab("far_id", kBadValue, R"({"a":100000})"),
      bad_vocab("id_twice", kBadValue, R"({"a":0,"b":0})"),
      bad_vocab("id_fraction", kBadJson, R"({"a":0.5})"),
      bad_bpe("no_merges", kBadJson, R"("dropout":null)"),
      bad_bpe("merges_object", kBadJson, R"("merges":{})"),
      bad_bpe("merge_one", kBadValue, R"("merges":["ab"])"),
      bad_bpe("merge_number", kBadValue, R"("merges":[1])"),
      bad_bpe("merge_three", kBadValue, R"("merges":[["a","b","c"]])"),
      bad_bpe("merge_empty_half", kBadValue, R"("merges":[["a",""]])"),
      bad_bpe("merge_ends_in_space", kBadValue, R"("merges":["a "])"),
      bad_bpe("prefix", kUnsupportedTokenizer, R"("merges":[],"continuing_subword_prefix":"##")"),
      bad_bpe("suffix", kUnsupportedTokenizer, R"("merges":[],"end_of_word_suffix":"</w>")"),
      bad_bpe("byte_fallback_text", kBadJson, R"("merges":[],"byte_fallback":"yes")"),
      bad_bpe("unk_number", kBadJson, R"("merges":[],"unk_token":3)"),
      bad_unigram("no_vocab", kBadJson, R"("unk_id":0)"),
      bad_unigram("vocab_object", kBadJson, R"("vocab":{})"),
      bad_unigram("no_score", kBadJson, R"("vocab":[["a"]])"),
      bad_unigram("score_text", kBadJson, R"("vocab":[["a","0"]])"),
      bad_unigram("score_too_large", kBadValue, R"("vocab":[["a",1e300]])"),
      bad_unigram("unk_outside", kBadValue, R"("vocab":[["a",0]],"unk_id":1)"),
      bad_unigram("unk_negative", kBadJson, R"("vocab":[["a",0]],"unk_id":-1)"),
      bad("vocabulary_empty", kBadCount, R"({"model":{"type":"BPE","vocab":{},"merges":[]}})"),
  };
}

std::vector<BadFile> bad_pipelines() {
  const std::string single = R"({"type":"TemplateProcessing","single":)";
  const std::string special = R"({"SpecialToken":{"id":"<s>"}})";
  return {
      bad_added("entry_number", kBadJson, "[1]"),
      bad_added("no_id", kBadJson, R"([{"content":"x"}])"),
      bad_added("no_content", kBadValue, R"([{"id":4}])"),
      bad_added("content_number", kBadJson, R"([{"id":4,"content":1}])"),
      bad_added("special_text", kBadJson, R"([{"id":4,"content":"x","special":"yes"}])"),
      bad_added("id_taken", kBadValue, R"([{"id":0,"content":"x"}])"),
      bad_added("id_far", kBadValue, R"([{"id":1000000,"content":"x"}])"),
      bad_added("id_negative", kBadValue, R"([{"id":-4,"content":"x"}])"),
      bad_steps("number", kBadJson, "1"),
      bad_steps("no_type", kBadJson, "{}"),
      bad_steps("type_number", kBadJson, R"({"type":1})"),
      bad_steps("sequence_no_list", kBadJson, R"({"type":"Sequence"})"),
      bad_steps("sequence_of_numbers", kBadJson, R"({"type":"Sequence","pretokenizers":[1]})"),
      bad_steps("nested_20", kTooDeep, nested_sequences(20)),
      bad_steps(
          "too_many", kBadCount,
          R"({"type":"Sequence","pretokenizers":[)"s + many(R"({"type":"Digits"})", 65) + "]}"),
      bad_steps("pattern_number", kBadJson, R"({"type":"Split","pattern":1})"),
      bad_steps("pattern_empty", kBadJson, R"({"type":"Split","pattern":{}})"),
      bad_steps("regex_number", kBadJson, R"({"type":"Split","pattern":{"Regex":1}})"),
      bad_steps("invert_text", kBadJson, R"({"type":"Split","pattern":"a","invert":"no"})"),
      bad_steps("split_number", kBadJson, R"({"type":"Metaspace","split":0})"),
      bad("decoder_start_negative", kBadJson,
          TokenizerJson{.decoder = R"({"type":"Strip","start":-1})"}.text()),
      bad("decoder_start_huge", kBadJson,
          TokenizerJson{.decoder = R"({"type":"Strip","start":4294967296})"}.text()),
      bad("normalizer_text", kBadJson, TokenizerJson{.normalizer = R"("NFC")"}.text()),
      bad_post("unknown", kUnsupportedTokenizer, R"({"type":"Surprise"})"),
      bad_post("no_single", kBadJson, R"({"type":"TemplateProcessing"})"),
      bad_post("single_number", kBadJson, single + "[1]}"),
      bad_post("no_table", kBadJson, single + "[" + special + "]}"),
      bad_post("token_not_in_table", kBadJson,
               single + "[" + special + R"(],"special_tokens":{}})"),
      bad_post("two_ids", kBadJson,
               single + "[" + special + R"(],"special_tokens":{"<s>":{"ids":[4,5]}}})"),
      bad_post("id_outside", kBadValue,
               single + "[" + special + R"(],"special_tokens":{"<s>":{"ids":[99]}}})"),
      bad_post("id_negative", kBadJson,
               single + "[" + special + R"(],"special_tokens":{"<s>":{"ids":[-1]}}})"),
      bad_post("too_long", kBadCount, single + "[" + many(special, 65) + "]}"),
      bad_post("cls_text", kBadJson, R"({"type":"BertProcessing","cls":"<s>"})"),
      bad_post("sep_missing", kBadJson, R"({"type":"RobertaProcessing","cls":["<s>",4]})"),
  };
}

}  // namespace

std::vector<BadFile> bad_tokenizer_json() {
  auto all = bad_vocabularies();
  for (BadFile& file : bad_pipelines()) all.push_back(std::move(file));
  return all;
}

}  // namespace reprise::test
