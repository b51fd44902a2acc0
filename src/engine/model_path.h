// Where a model named on the command line lies.
#pragma once

#include <memory>
#include <string>

#include "formats/tokenizer_data.h"
#include "reprise/error.h"
#include "text/tokenizer.h"

namespace reprise {

/// The path itself (or "random:NAME"), or for "smollm2" the cached default model
/// (${XDG_CACHE_HOME:-~/.cache}/reprise/SmolLM2-135M-Instruct.Q4_1.gguf). kFileNotFound says how to
/// get it, also of a name that is nearly its.
Result<std::string> resolve_model(const std::string& model);

/// The tokenizer of a model at such a path; that of random models is made of bytes. Errors: those
/// of the formats' readers.
Result<TokenizerData> read_tokenizer(const std::string& path);
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& path);

}  // namespace reprise
