#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "base/try.h"
#include "formats/printable.h"
#include "formats/safetensors.h"
#include "formats/tokenizer_check.h"

namespace reprise {
namespace {

using Json = nlohmann::json;

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

/// A JSON object of the folder; empty when the file is absent.
struct Settings {
  std::string path;
  Json json = Json::object();

  /// The member, nullptr when it is absent or null.
  const Json* find(std::string_view key) const {
    const auto found = json.find(key);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }
};

Result<Settings> read_settings(const std::string& folder, std::string_view name) {
  Settings settings;
  settings.path = fmt::format("{}/{}", folder, name);
  if (!exists(settings.path)) return settings;
  REPRISE_TRY(const std::string text, read_text_file(settings.path));
  REPRISE_TRY(settings.json, parse_json(text, settings.path));
  if (!settings.json.is_object()) {
    return fail(ErrorCode::kBadJson, "{}: not a JSON object", settings.path);
  }
  return settings;
}

Status set_flag(const Settings& settings, std::string_view key, bool& flag) {
  const Json* value = settings.find(key);
  if (value == nullptr) return {};
  if (!value->is_boolean()) {
    return fail(ErrorCode::kBadType, "{}: {} is not true or false", settings.path, key);
  }
  flag = value->get<bool>();
  return {};
}

// A special token is written as its text or as an object that holds it as "content". A padding or
// unknown token that the vocabulary lacks changes nothing here; a missing BOS or EOS would.
Status set_token(const Settings& settings, std::string_view key, const TokenizerData& data,
                 bool must_exist, std::optional<int32_t>& id) {
  const Json* value = settings.find(key);
  if (value == nullptr) return {};
  if (value->is_object() && value->contains("content")) value = &(*value)["content"];
  if (!value->is_string()) {
    return fail(ErrorCode::kBadType, "{}: {} is not a token", settings.path, key);
  }
  const auto& text = value->get_ref<const std::string&>();
  id = find_token(data, text);
  if (id || !must_exist) return {};
  return fail(ErrorCode::kBadValue, "{}: {} {} is not in the vocabulary", settings.path, key,
              printable(text));
}

Status set_tokens(const Settings& settings, TokenizerData& data) {
  REPRISE_CHECK(set_token(settings, "bos_token", data, true, data.bos));
  REPRISE_CHECK(set_token(settings, "eos_token", data, true, data.eos));
  REPRISE_CHECK(set_token(settings, "unk_token", data, false, data.unknown));
  return set_token(settings, "pad_token", data, false, data.pad);
}

// One entry of added_tokens_decoder: {"32000": {"content": "<|end|>", "special": true, ...}}.
Result<AddedToken> read_added(const Settings& settings, const std::string& key, const Json& entry,
                              size_t limit) {
  uint32_t id = 0;
  const char* end = key.data() + key.size();
  const auto parsed = std::from_chars(key.data(), end, id);
  if (parsed.ec != std::errc{} || parsed.ptr != end || id >= limit) {
    return fail(ErrorCode::kBadValue, "{}: added token id {} is outside 0 to {}", settings.path,
                printable(key), limit - 1);
  }
  const auto content = entry.is_object() ? entry.find("content") : entry.end();
  if (content == entry.end() || !content->is_string()) {
    return fail(ErrorCode::kBadJson, "{}: added token {} has no content", settings.path, id);
  }
  const auto flag = [&](const char* name) { return entry.value(name, Json()) == Json(true); };
  AddedToken token;
  token.text = content->get<std::string>();
  token.id = static_cast<int32_t>(id);
  token.special = flag("special");
  token.lstrip = flag("lstrip");
  token.rstrip = flag("rstrip");
  token.single_word = flag("single_word");
  token.normalized = flag("normalized");
  return token;
}

// Tokens that a tokenizer.model does not hold; they may extend its vocabulary.
Status add_tokens(const Settings& settings, TokenizerData& data) {
  const Json* table = settings.find("added_tokens_decoder");
  if (table == nullptr) return {};
  if (!table->is_object()) {
    return fail(ErrorCode::kBadType, "{}: added_tokens_decoder is not an object", settings.path);
  }
  std::map<int32_t, AddedToken> by_id;
  for (AddedToken& token : data.added) by_id.emplace(token.id, std::move(token));
  const size_t limit = data.tokens.size() + table->size();
  for (const auto& [key, entry] : table->items()) {
    REPRISE_TRY(auto token, read_added(settings, key, entry, limit));
    const auto id = static_cast<size_t>(token.id);
    if (id >= data.tokens.size()) {
      data.tokens.resize(id + 1);
      data.kinds.resize(id + 1, TokenKind::kUnused);
      data.scores.resize(id + 1, 0.0f);
    }
    data.tokens[id] = token.text;
    data.kinds[id] = token.special ? TokenKind::kControl : TokenKind::kUserDefined;
    by_id.insert_or_assign(token.id, std::move(token));
  }
  data.added.clear();
  for (auto& [id, token] : by_id) data.added.push_back(std::move(token));
  return {};
}

Result<TokenizerData> read_vocabulary(const std::string& folder, const Settings& config) {
  const std::string json = folder + "/tokenizer.json", model = folder + "/tokenizer.model";
  if (exists(json)) {
    REPRISE_TRY(const std::string text, read_text_file(json));
    return parse_tokenizer_json(text, json);
  }
  if (exists(model)) {
    REPRISE_TRY(const std::string bytes, read_text_file(model));
    REPRISE_TRY(auto data, parse_sentencepiece(bytes, model));
    REPRISE_CHECK(add_tokens(config, data));
    return data;
  }
  return fail(ErrorCode::kTokenizerMissing,
              "{}: neither tokenizer.json nor tokenizer.model is here", folder);
}

// One template, or a list of named ones of which "default" is meant.
Status set_template(const Settings& settings, TokenizerData& data) {
  const Json* value = settings.find("chat_template");
  if (value == nullptr) return {};
  if (value->is_array()) {
    const auto is_default = [](const Json& item) {
      return item.is_object() && item.value("name", Json()) == Json("default");
    };
    const auto found = std::ranges::find_if(*value, is_default);
    if (found == value->end()) return {};
    const auto source = found->find("template");
    value = source == found->end() ? nullptr : &*source;
  }
  if (value == nullptr || !value->is_string()) {
    return fail(ErrorCode::kBadType, "{}: chat_template is not a text", settings.path);
  }
  data.chat_template = value->get<std::string>();
  return {};
}

// eos_token_id: an id or a list of ids.
// strict: ids outside the vocabulary are an error, and not left out.
Status set_end_ids(const Settings& settings, bool strict, TokenizerData& data) {
  const Json* value = settings.find("eos_token_id");
  if (value == nullptr) return {};
  const Json ids = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= data.tokens.size()) {
      if (!strict) continue;
      return fail(ErrorCode::kBadValue, "{}: eos_token_id {} is outside the vocabulary of {}",
                  settings.path, printable(id.dump(-1, ' ', true)), data.tokens.size());
    }
    data.end_of_turn.push_back(id.get<int32_t>());
  }
  if (!data.eos && !data.end_of_turn.empty()) data.eos = data.end_of_turn.front();
  return {};
}

// chat_template.jinja counts; older processors' chat_template.json only where nothing else is
// there.
Status set_template_file(const std::string& folder, TokenizerData& data) {
  const std::string path = folder + "/chat_template.jinja";
  if (!exists(path)) {
    if (!data.chat_template.empty()) return {};
    REPRISE_TRY(const auto processor, read_settings(folder, "chat_template.json"));
    return set_template(processor, data);
  }
  REPRISE_TRY(data.chat_template, read_text_file(path));
  if (is_utf8(data.chat_template)) return {};
  return fail(ErrorCode::kBadString, "{}: not valid UTF-8", path);
}

}  // namespace

Result<TokenizerData> read_folder_tokenizer(const std::string& folder) {
  REPRISE_TRY(const auto special, read_settings(folder, "special_tokens_map.json"));
  REPRISE_TRY(const auto config, read_settings(folder, "tokenizer_config.json"));
  REPRISE_TRY(auto generation, read_settings(folder, "generation_config.json"));
  const bool has_own = !generation.json.empty();
  if (!has_own) {
    REPRISE_TRY(generation, read_settings(folder, "config.json"));  // of older folders
  }
  REPRISE_TRY(auto data, read_vocabulary(folder, config));
  REPRISE_CHECK(set_tokens(special, data));
  REPRISE_CHECK(set_tokens(config, data));
  REPRISE_CHECK(set_flag(config, "add_bos_token", data.add_bos));
  REPRISE_CHECK(set_flag(config, "add_eos_token", data.add_eos));
  data.add_bos = data.add_bos && data.bos.has_value();
  data.add_eos = data.add_eos && data.eos.has_value();
  REPRISE_CHECK(set_template(config, data));
  REPRISE_CHECK(set_template_file(folder, data));
  REPRISE_CHECK(set_end_ids(generation, has_own, data));
  REPRISE_CHECK(finish_tokenizer(data, folder));
  return data;
}

}  // namespace reprise
