// tokenizer.json texts for tests, out of the parts that a case wants to spoil.
#pragma once

#include <string>

namespace reprise::test {

struct TokenizerJson {
  std::string model = R"({"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"<0x41>":3},"merges":["a b"],)"
                      R"("byte_fallback":true})";
  std::string added = R"([{"id":4,"content":"<s>","special":true},)"
                      R"({"id":5,"content":"<|im_end|>","special":true,"rstrip":true},)"
                      R"({"id":6,"content":"  ","special":false,"normalized":true}])";
  std::string normalizer = R"({"type":"Sequence","normalizers":[{"type":"NFC"},)"
                           R"({"type":"Replace","pattern":{"String":" "},"content":"_"}]})";
  std::string pre_tokenizer =
      R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\d+"},)"
      R"("behavior":"Isolated","invert":true},)"
      R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]})";
  std::string post_processor =
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],)"
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[4],"tokens":["<s>"]}}})";
  std::string decoder = R"({"type":"Strip","content":" ","start":1,"stop":0})";

  std::string text() const {
    return std::string(R"({"version":"1.0","added_tokens":)") + added + R"(,"normalizer":)" +
           normalizer + R"(,"pre_tokenizer":)" + pre_tokenizer + R"(,"post_processor":)" +
           post_processor + R"(,"decoder":)" + decoder + R"(,"model":)" + model + "}";
  }
};

inline std::string small_tokenizer_json() { return TokenizerJson().text(); }

}  // namespace reprise::test
