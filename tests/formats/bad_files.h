// Malformed files, each with a name and the one error code it must be refused with.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "reprise/error.h"

namespace reprise::test {

/// What every message must contain, for the formats that are parsed from memory.
inline const std::string kBadName = "bad-file";

struct BadFile {
  std::string name;
  ErrorCode code;
  std::function<Status()> parse;
  std::string mention = kBadName;  ///< must be part of the message
};

/// How gtest shows a case.
inline void PrintTo(const BadFile& file, std::ostream* out) { *out << file.name; }

std::vector<BadFile> bad_gguf_headers();
std::vector<BadFile> bad_gguf_tensors();
std::vector<BadFile> bad_gguf_tokenizers();
std::vector<BadFile> bad_safetensors();
std::vector<BadFile> bad_folders();
std::vector<BadFile> bad_tokenizer_json();
std::vector<BadFile> bad_sentencepiece();

/// Only the error of a result.
template <class T>
Status status_of(const Result<T>& result) {
  if (result) return {};
  return tl::unexpected<Error>(result.error());
}

}  // namespace reprise::test
