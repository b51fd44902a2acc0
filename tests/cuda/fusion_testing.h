// What tests of stored chunks on CUDA devices share.
#pragma once

#include <fstream>
#include <string>

#include "cuda/engine_testing.h"
#include "engine/library_testing.h"
#include "kernels/cuda/kv_tile.h"

namespace reprise::test {

inline constexpr uint32_t kStoredLayers = 5;

inline EngineOptions stored_options(const std::string& kv_type = "bf16",
                                    const std::string& scaling = "", uint32_t head_dim = 64) {
  EngineOptions options = cuda_options();
  options.model = tiny_model({head_dim, kStoredLayers, scaling});
  options.kv_type = kv_type;
  return options;
}

/// Keys or values of tokens in a layer, from pages of bf16.
inline std::vector<float> read_back(const SequenceKv& kv, uint32_t layer, int32_t begin,
                                    int32_t end, bool keys) {
  using namespace kernels::cuda;
  PagePool& pool = kv.pool();
  const kernels::KvLayout& layout = pool.layout();
  std::vector<std::byte> page(pool.page_bytes());
  std::vector<float> out;
  for (int32_t at = begin; at < end; ++at) {
    const auto place = static_cast<uint32_t>(at);
    const PageId id = kv.pages(layer)[place / kernels::kPageTokens];
    EXPECT_TRUE(pool.read(page.data(), layer, id));
    for (uint32_t head = 0; head < layout.n_kv_head; ++head) {
      const size_t tile = (2 * head + (keys ? 0 : 1)) * tile_bytes(KvType::kBF16, layout.head_dim);
      for (uint32_t d = 0; d < layout.head_dim; ++d) {
        Bf16 value;
        const uint32_t slot = place % kernels::kPageTokens;
        std::memcpy(&value, &page[tile + element_offset(KvType::kBF16, layout.head_dim, slot, d)],
                    sizeof value);
        out.push_back(to_float(value));
      }
    }
  }
  return out;
}

inline std::vector<float> read_back(Session& session, uint32_t layer, int32_t begin, int32_t end,
                                    bool keys) {
  return read_back(session.impl().sequence.kv, layer, begin, end, keys);
}

/// Adds chunks, each kept in a form of its own.
inline void add_in_forms(Books& books, const PartedPrompt& prompt,
                         const std::vector<std::string>& codecs) {
  LibraryOptions how;
  how.store = books.folder;
  for (size_t i = 0; i < prompt.chunks.size(); ++i) {
    how.store_codec = codecs[i];
    auto library = Library::open(*books.engine, how, true);
    ASSERT_TRUE(library) << library.error().message;
    ASSERT_TRUE(library->add("book", 0, prompt.chunks[i]));
  }
}

/// Forms of three chunks.
inline const std::vector<std::vector<std::string>> kForms = {{"none", "none", "none"},
                                                             {"zstd", "q8_0+zstd", "zstd"},
                                                             {"q8_0", "q8_0", "q8_0"},
                                                             {"q8_0", "none", "q8_0"},
                                                             {"none", "q8_0", "none"}};

/// Breaks the last block of the only segment.
inline void damage_last_block(const Books& books) {
  std::fstream file(books.folder + "/seg-00000001.kv",
                    std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-5000, std::ios::end).put('\x55').put('\x55').put('\x55');
}

}  // namespace reprise::test
