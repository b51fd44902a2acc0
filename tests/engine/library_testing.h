// Stored chunks of a made-up model, and what it says of prompts.
#pragma once

#include <gmock/gmock.h>

#include <cmath>
#include <optional>

#include "engine/chunk_context.h"
#include "engine/engine_impl.h"
#include "engine/tiny_model.h"
#include "reprise/library.h"

namespace reprise::test {

/// An engine over a model of five layers, a store, and what it says of prompts.
class Books {
 public:
  explicit Books(const std::string& kv_type, const std::string& scaling = "",
                 LibraryOptions how = {}) {
    EngineOptions options = tiny_options();
    options.model = tiny_model({32, 5, scaling});
    options.kv_type = kv_type;
    open(options, std::move(how));
  }
  explicit Books(const EngineOptions& options, LibraryOptions how = {}) {
    open(options, std::move(how));
  }

  void open(EngineOptions options, LibraryOptions how) {
    static int stores = 0;
    options.prefix_cache = false;
    engine = tiny_engine(options);
    folder = scratch_folder() + "/store" + std::to_string(stores++);
    how.store = folder;
    lead = how.store_lead;
    auto opened = Library::open(*engine, how, true);
    if (!opened) throw std::runtime_error(opened.error().message);
    library.emplace(std::move(*opened));
  }

  ChunkContext context(std::string_view how) const {
    const Engine::Impl& impl = engine->impl();
    return {*impl.tokenizer, impl.prompts, how};
  }
  /// A prompt whose chunk of 90 tokens stands right behind what it was read after.
  PartedPrompt at_its_own_place() const {
    return {context(lead).tokens(), {tiny_prompt(90, 2)}, tiny_prompt(20, 5)};
  }
  void add(const PartedPrompt& prompt) {
    for (const auto& chunk : prompt.chunks) ASSERT_TRUE(library->add("book", 0, chunk));
  }
  /// Logits of eight forced tokens.
  std::vector<float> logits(Session& session, const PartedPrompt& prompt) const {
    std::vector<float> all;
    Request request;
    request.prompt = prompt.tokens();
    request.forced = tiny_prompt(8, 99);
    request.max_tokens = 8;
    request.on_logits = [&](std::span<const float> row) {
      all.insert(all.end(), row.begin(), row.end());
    };
    const auto answer = session.generate(request);
    EXPECT_TRUE(answer) << answer.error().message;
    return all;
  }
  std::vector<float> full(const PartedPrompt& prompt) const {
    return logits(**engine->open(), prompt);
  }
  std::vector<float> fused(const PartedPrompt& prompt, const char* fusion,
                           const char* policy = "full") {
    auto session = *engine->open(policy);
    const auto done = library->fuse(*session, prompt, fusion);
    EXPECT_TRUE(done) << done.error().message;
    if (done) report = *done;
    return logits(*session, prompt);
  }

  std::unique_ptr<Engine> engine;
  std::string folder, lead;
  std::optional<Library> library;
  FusionReport report;
};

inline PartedPrompt three_chunks() {
  return {tiny_prompt(21, 1),
          {tiny_prompt(100, 2), tiny_prompt(37, 3), tiny_prompt(150, 4)},
          tiny_prompt(25, 5)};
}

/// Keys or values of tokens [begin, end) in a layer.
inline std::vector<float> stored(const SequenceKv& kv, uint32_t layer, int32_t begin, int32_t end,
                                 bool keys) {
  const kernels::KvLayout& layout = kv.pool().layout();
  const size_t width = size_t{layout.n_kv_head} * layout.head_dim;
  std::vector<float> out, k(width), v(width);
  for (auto at = static_cast<size_t>(begin); at < static_cast<size_t>(end); ++at) {
    kernels::load_token(layout, kv.page(layer, at / kPageTokens), at % kPageTokens, k.data(),
                        v.data());
    out.insert(out.end(), keys ? k.begin() : v.begin(), keys ? k.end() : v.end());
  }
  return out;
}

inline std::vector<float> stored(Session& session, uint32_t layer, int32_t begin, int32_t end,
                                 bool keys) {
  return stored(session.impl().sequence.kv, layer, begin, end, keys);
}

inline double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace reprise::test
