// Chunks that carry a number, from which all they hold follows.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "kv/session_testing.h"
#include "store/chunk_store.h"

namespace reprise {

// Where there is a folder in memory: what is tested is which calls are made, not the disk.
inline const bool kInMemory =
    std::filesystem::is_directory("/dev/shm") && ::setenv("TMPDIR", "/dev/shm", 0) == 0;

inline constexpr BlockCodec kTestCodecs[] = {
    {}, {.zstd = true}, {.q8_0 = true}, {.q8_0 = true, .zstd = true}};

inline constexpr ChunkIdentity kTestIdentity = {{11, 22, 33}, kernels::KvType::kBF16, 3, 2, 4};
inline const std::vector<int32_t> kTestContext = {0};

struct TestChunk {
  std::vector<int32_t> tokens;
  std::vector<std::byte> blocks;
  ChunkSource source;

  ChunkTokens ids() const { return {kTestContext, tokens}; }
};

inline TestChunk make_chunk(uint32_t number, const ChunkIdentity& identity = kTestIdentity) {
  std::mt19937 random(number);
  TestChunk chunk;
  chunk.tokens = {static_cast<int32_t>(number)};
  for (uint32_t i = 0; i < 3 + number % 40; ++i) {
    chunk.tokens.push_back(static_cast<int32_t>(random() % 50000));
  }
  chunk.blocks.resize(2 * identity.row_bytes() * chunk.tokens.size() * identity.n_layer);
  // Numbers of a size, so that every codec can hold them.
  for (size_t i = 0; i < chunk.blocks.size(); i += 2) {
    const uint32_t bits = 0x3f00 + random() % 0x100 + (random() % 2 << 15);
    chunk.blocks[i] = static_cast<std::byte>(bits);
    chunk.blocks[i + 1] = static_cast<std::byte>(bits >> 8);
  }
  chunk.source = {"document", number, "chunk number" + std::to_string(number)};
  return chunk;
}

inline ChunkStore open_store(const std::string& folder, const StoreLimits& limits = {}) {
  auto store = ChunkStore::open(folder, true, limits);
  if (!store) ADD_FAILURE() << store.error().message;
  return std::move(store.value());
}

inline Result<bool> add_chunk(ChunkStore& store, uint32_t number, BlockCodec codec = {}) {
  const TestChunk chunk = make_chunk(number);
  return store.add(kTestIdentity, chunk.ids(), chunk.source, chunk.blocks, codec);
}

/// A chunk's layer as it comes back from a form.
inline std::vector<std::byte> layer_as(const TestChunk& chunk, uint32_t layer, BlockCodec codec,
                                       BlockForm form = BlockForm::kValues) {
  const size_t size = chunk.blocks.size() / kTestIdentity.n_layer;
  const auto raw = std::span(chunk.blocks).subspan(layer * size, size);
  std::vector<std::byte> out(form_bytes(codec, form, kTestIdentity.type, size));
  const auto encoded = encode_block(codec, kTestIdentity.type, raw);
  EXPECT_TRUE(encoded && decode_block(codec, form, kTestIdentity.type, *encoded, out));
  return out;
}

enum class Found { kMissing, kRight, kWrong };

/// What the store says of a chunk: a layer that cannot be read back makes it missing.
inline Found look_up(ChunkStore& store, uint32_t number, BlockCodec codec = {}) {
  const TestChunk chunk = make_chunk(number);
  const auto found = store.find(kTestIdentity, chunk.ids());
  if (!found || !*found) return Found::kMissing;
  if ((*found)->record().tokens != chunk.tokens) return Found::kWrong;
  const size_t size = (*found)->block_bytes();
  std::vector<std::byte> block(size);
  for (uint32_t layer = 0; layer < kTestIdentity.n_layer; ++layer) {
    if (!(*found)->read_layer(layer, block)) return Found::kMissing;
    if (block != layer_as(chunk, layer, codec)) return Found::kWrong;
  }
  return Found::kRight;
}

/// A count that continuous integration can afford, unless the environment says another.
inline int repeats(const char* variable, int usual) {
  const char* text = std::getenv(variable);
  return text == nullptr ? usual : std::atoi(text);
}

}  // namespace reprise
