#include "engine/model_path.h"

#include <filesystem>

#include "base/nearest.h"
#include "base/system.h"
#include "base/try.h"
#include "model/random_model.h"
#include "text/byte_tokenizer.h"

namespace reprise {

Result<std::string> resolve_model(const std::string& model) {
  static constexpr std::string_view kDefault = "smollm2";
  std::error_code ignored;
  if (model.starts_with(kRandomPrefix) || std::filesystem::exists(model, ignored)) return model;
  if (model.empty()) {
    return fail(ErrorCode::kFileNotFound, "\"\" names no model; name one with --model");
  }
  if (model != kDefault) {
    const std::string meant = suggestion(model, {&kDefault, 1});
    if (meant.empty()) return model;
    return fail(ErrorCode::kFileNotFound, "there is no file or folder '{}'{}", model, meant);
  }
  const std::string path = user_file("XDG_CACHE_HOME", ".cache", "SmolLM2-135M-Instruct.Q4_1.gguf");
  if (path.empty()) {
    return fail(ErrorCode::kFileNotFound,
                "where the default model lies is unknown without HOME; name a model with --model");
  }
  if (std::filesystem::exists(path, ignored)) return path;
  return fail(
      ErrorCode::kFileNotFound,
      "the default model is not at {}; fetch it with `make model`, or name one with --model", path);
}

Result<TokenizerData> read_tokenizer(const std::string& path) {
  if (path.starts_with(kRandomPrefix)) {
    REPRISE_TRY(const RandomSpec spec, parse_random_spec(path));
    return byte_tokenizer(spec.config.vocab);
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return read_folder_tokenizer(path);
  REPRISE_TRY(const GgufFile file, GgufFile::open(path));
  return read_gguf_tokenizer(file);
}

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& path) {
  REPRISE_TRY(TokenizerData data, read_tokenizer(path));
  return Tokenizer::create(std::move(data));
}

}  // namespace reprise
