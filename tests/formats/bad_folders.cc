#include <map>

#include "formats/bad_files.h"
#include "formats/safetensors.h"
#include "formats/safetensors_builder.h"
#include "formats/sentencepiece_builder.h"
#include "formats/tokenizer_data.h"
#include "formats/tokenizer_json_text.h"

namespace reprise::test {
namespace {

using enum ErrorCode;
using namespace std::string_literals;

using Files = std::map<std::string, std::string>;  // file name -> content

std::string write(const TempFolder& folder, const Files& files) {
  for (const auto& [name, text] : files) write_file(folder.path() + "/" + name, text);
  return folder.path();
}

BadFile bad(std::string name, ErrorCode code, Files files, const std::string& mention) {
  const auto parse = [files = std::move(files)] {
    const TempFolder folder;
    return status_of(SafetensorsFolder::open(write(folder, files)));
  };
  return {"folder_"s + std::move(name), code, parse, mention};
}
// An index beside a good shard "s.safetensors" with tensors "w" and "v".
BadFile bad_index(std::string name, ErrorCode code, const std::string& index,
                  const std::string& mention = "model.safetensors.index.json") {
  return bad("index_"s + std::move(name), code,
             {{"config.json", "{}"},
              {"s.safetensors", small_safetensors()},
              {"t.safetensors", small_safetensors()},
              {"model.safetensors.index.json", index}},
             mention);
}
BadFile bad_shard(std::string name, ErrorCode code, const std::string& shard) {
  return bad_index(std::move(name), code, R"({"weight_map":{"w":)"s + shard + "}}");
}
// A folder with a tokenizer.json and the file that a case spoils.
BadFile bad_setting(std::string name, ErrorCode code, const std::string& file,
                    const std::string& text, bool sentencepiece = false) {
  Files files{{file, text}};
  files.emplace(sentencepiece ? "tokenizer.model" : "tokenizer.json",
                sentencepiece ? small_sentencepiece().bytes() : small_tokenizer_json());
  const auto parse = [files = std::move(files)] {
    const TempFolder folder;
    return status_of(read_folder_tokenizer(write(folder, files)));
  };
  return {"folder_"s + std::move(name), code, parse, file};
}

}  // namespace

std::vector<BadFile> bad_folders() {
  const std::string config = "tokenizer_config.json", generation = "generation_config.json";
  const std::string decoder = R"({"added_tokens_decoder":)";
  return {
      bad("empty", kFileNotFound, {}, "config.json is missing"),
      bad("of_gguf", kFileNotFound, {{"weights.gguf", "GGUF"}}, "weights.gguf"),
      bad("config_empty", kBadJson, {{"config.json", ""}}, "config.json"),
      bad("config_list", kBadJson, {{"config.json", "[]"}}, "config.json"),
      bad("config_deep", kTooDeep, {{"config.json", std::string(1000000, '[')}}, "config.json"),
      bad("config_not_utf8", kBadJson, {{"config.json", "{\"\x80\":0}"}}, "config.json"),
      bad("no_weights", kFileNotFound, {{"config.json", "{}"}}, "model.safetensors"),
      bad("weights_empty", kTruncated, {{"config.json", "{}"}, {"model.safetensors", ""}},
          "model.safetensors"),
      bad_index("not_json", kBadJson, "weight_map"),
      bad_index("list", kBadJson, "[]"),
      bad_index("no_weight_map", kBadJson, "{}"),
      bad_index("weight_map_list", kBadJson, R"({"weight_map":[]})"),
      bad_index("weight_map_empty", kBadJson, R"({"weight_map":{}})"),
      bad_index("tensor_not_there", kMissingTensor, R"({"weight_map":{"u":"s.safetensors"}})"),
      bad_index("tensor_in_two_shards", kDuplicateKey,
                R"({"weight_map":{"w":"s.safetensors","v":"t.safetensors"}})", "t.safetensors"),
      bad_index("shard_missing", kFileNotFound, R"({"weight_map":{"w":"u.safetensors"}})",
                "u.safetensors"),
      bad_shard("shard_parent", kBadValue, R"("../s.safetensors")"),
      bad_shard("shard_absolute", kBadValue, R"("/etc/s.safetensors")"),
      bad_shard("shard_subfolder", kBadValue, R"("sub/s.safetensors")"),
      bad_shard("shard_backslash", kBadValue, R"("..\\s.safetensors")"),
      bad_shard("shard_hidden", kBadValue, R"("..safetensors")"),
      bad_shard("shard_nul", kBadValue, R"("s\u0000.safetensors")"),
      bad_shard("shard_other_kind", kBadValue, R"("config.json")"),
      bad_shard("shard_empty", kBadValue, R"("")"),
      bad_shard("shard_number", kBadValue, "1"),
      bad_setting("config_of_tokenizer_list", kBadJson, config, "[]"),
      bad_setting("config_of_tokenizer_deep", kTooDeep, config, std::string(100000, '[')),
      bad_setting("eos_not_in_vocabulary", kBadValue, config, R"({"eos_token":"</nowhere>"})"),
      bad_setting("bos_number", kBadType, config, R"({"bos_token":1})"),
      bad_setting("add_bos_number", kBadType, config, R"({"add_bos_token":1})"),
      bad_setting("template_number", kBadType, config, R"({"chat_template":1})"),
      bad_setting("template_of_processor_number", kBadType, "chat_template.json",
                  R"({"chat_template":1})"),
      bad_setting("template_list_no_text", kBadType, config,
                  R"({"chat_template":[{"name":"default"}]})"),
      bad_setting("template_not_utf8", kBadString, "chat_template.jinja", "\xff"),
      bad_setting("special_map_number", kBadType, "special_tokens_map.json", R"({"eos_token":2})"),
      bad_setting("end_ids_outside", kBadValue, generation, R"({"eos_token_id":[0,999]})"),
      bad_setting("end_id_negative", kBadValue, generation, R"({"eos_token_id":-1})"),
      bad_setting("end_id_text", kBadValue, generation, R"({"eos_token_id":"</s>"})"),
      bad_setting("added_list", kBadType, config, decoder + "[]}", true),
      bad_setting("added_id_huge", kBadValue, config,
                  decoder + R"({"4000000000":{"content":"x"}}})", true),
      bad_setting("added_id_text", kBadValue, config, decoder + R"({"1x":{"content":"x"}}})", true),
      bad_setting("added_no_content", kBadJson, config, decoder + R"({"7":{}}})", true),
      bad_setting("added_number", kBadJson, config, decoder + R"({"7":1}})", true),
  };
}

}  // namespace reprise::test
