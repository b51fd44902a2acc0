// Tokenizers and recorded ids that the tests share.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "formats/tokenizer_data.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace reprise {

inline std::string fixture(const std::string& name) {
  return std::string(REPRISE_FIXTURES) + "/tokenizers/" + name;
}

inline std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json read_goldens(const std::string& name) {
  return nlohmann::json::parse(read_all(fixture(name)));
}

inline std::unique_ptr<Tokenizer> make_tokenizer(Result<TokenizerData> data) {
  EXPECT_TRUE(data) << data.error().message;
  if (!data) return nullptr;
  auto tokenizer = Tokenizer::create(std::move(*data));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return tokenizer ? std::move(*tokenizer) : nullptr;
}

/// A tokenizer.json or .model of the fixtures.
inline std::unique_ptr<Tokenizer> fixture_tokenizer(const std::string& name) {
  const std::string bytes = read_all(fixture(name));
  return make_tokenizer(name.ends_with(".model") ? parse_sentencepiece(bytes, name)
                                                 : parse_tokenizer_json(bytes, name));
}

inline std::unique_ptr<Tokenizer> gguf_tokenizer(const std::string& path) {
  auto file = GgufFile::open(path);
  EXPECT_TRUE(file) << file.error().message;
  return file ? make_tokenizer(read_gguf_tokenizer(*file)) : nullptr;
}

/// Where the default model is; empty when it is not on this machine.
inline std::string smollm2_path() {
  std::string path;
  if (const char* model = std::getenv("REPRISE_MODEL")) {
    path = model;
  } else {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    path = cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache";
    path += "/reprise/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  return std::filesystem::is_regular_file(path) ? path : "";
}

/// A byte-level BPE of the 256 bytes and these merges, as a GGUF has it.
inline TokenizerData tiny_byte_bpe(const std::vector<std::pair<std::string, std::string>>& merges,
                                   const std::string& pre = "gpt-2") {
  TokenizerData data;
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(to_byte_level(std::string(1, static_cast<char>(byte))));
  }
  for (const auto& [left, right] : merges) {
    data.merges.emplace_back(to_byte_level(left), to_byte_level(right));
    data.tokens.push_back(data.merges.back().first + data.merges.back().second);
  }
  data.kinds.assign(data.tokens.size(), TokenKind::kNormal);
  data.gguf_pre = pre;
  return data;
}

/// Adds a token that is matched in the text.
inline int32_t add_token(TokenizerData& data, const std::string& text, bool special) {
  const auto id = static_cast<int32_t>(data.tokens.size());
  data.tokens.push_back(text);
  data.kinds.push_back(special ? TokenKind::kControl : TokenKind::kUserDefined);
  if (!data.scores.empty()) data.scores.push_back(0);
  AddedToken token;
  token.text = text;
  token.id = id;
  token.special = special;
  data.added.push_back(token);
  return id;
}

}  // namespace reprise
