#include "engine/model_path.h"

#include <cstdlib>
#include <filesystem>

#include "base/try.h"
#include "model/random_model.h"
#include "text/byte_tokenizer.h"

namespace reprise {

Result<std::string> resolve_model(const std::string& model) {
  std::error_code ignored;
  if (model != "smollm2" || std::filesystem::exists(model, ignored)) return model;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache != nullptr && *cache != '\0')
    folder = cache;
  else if (home != nullptr)
    folder = std::filesystem::path(home) / ".cache";
  const auto path = folder / "reprise" / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (std::filesystem::exists(path, ignored)) return path.string();
  return fail(
      ErrorCode::kFileNotFound,
      "the default model is not at {}; fetch it with `make model`, or name one with --model",
      path.string());
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

}  // namespace reprise
