// Pages, codebooks and codes for tests of coded keys.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/device_testing.h"
#include "cuda/page_testing.h"
#include "kernels/cuda/key_codes.h"

namespace reprise::kernels::cuda {

inline constexpr uint32_t kRows = 3, kLayers = 2, kLayer = 1, kModelLayer = 5;
inline constexpr uint32_t kIterations = 4;
struct CodeHeads {
  uint32_t n_head, n_kv_head, head_dim;
  KvType type = KvType::kBF16;
};
/// Pages and queries of some rows, one layer of an index, and what kernels make of them.
struct CodeCase {
  CodeCase(const CodeHeads& own, uint32_t tokens, uint32_t seed = 5)
      : heads(own),
        shape{kLayers, own.n_kv_head, own.head_dim},
        capacity((tokens + kPageTokens - 1) / kPageTokens + 3),
        block_capacity(capacity / kBlockPages + 1),
        random(seed),
        tiles(own.type, own.head_dim, size_t{kRows} * capacity * own.n_kv_head * 2),
        table(size_t{kRows} * capacity),
        block_table(size_t{kRows} * block_capacity),
        q(size_t{kRows} * own.n_head * own.head_dim),
        kv((tiles.fill(random), tiles.bytes())),
        book(kRows * shape.book_floats()),
        moments(kRows * shape.moments()),
        codes(kRows * block_capacity * shape.block_bytes()),
        coded(size_t{kRows} * kLayers) {
    std::iota(table.begin(), table.end(), 0u);
    std::shuffle(table.begin(), table.end(), random);
    std::iota(block_table.begin(), block_table.end(), 0u);
    std::shuffle(block_table.begin(), block_table.end(), random);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < q.size(); ++i) {  // parts tell unequally much
      q[i] = to_bf16(normal(random) * (1.0f + 3.0f * static_cast<float>(i % 8 / 4))).bits;
    }
    rules.budget = 128;
    rules.sink = 16;
    rules.window = 20;
    rules.staggered = 100;
  }

  PagedKv paged() const { return {kv.get(), heads.type, heads.n_kv_head, heads.head_dim}; }
  uint32_t group() const { return heads.n_head / heads.n_kv_head; }
  double key(uint32_t row, uint32_t token, uint32_t head, uint32_t dim) const {
    const size_t page = table[row * capacity + token / kPageTokens];
    return tiles.value((page * heads.n_kv_head + head) * 2, token % kPageTokens, dim);
  }
  float query(size_t row, size_t head, size_t dim) const {
    return to_float(Bf16{q[(row * heads.n_head + head) * heads.head_dim + dim]});
  }
  size_t part(uint32_t row, uint32_t head, uint32_t index) const {
    return ((size_t{row} * kLayers + kLayer) * heads.n_kv_head + head) * shape.parts() + index;
  }

  /// Codebooks of all rows from their first pages.
  void train(const std::vector<uint16_t>& queries, uint32_t count, uint32_t tokens) {
    const DeviceArray<uint16_t> device_queries(queries);
    for (uint32_t row = 0; row < kRows; ++row) {
      QueryMomentsArgs args;
      args.shape = shape;
      args.layer = kLayer;
      args.n_head = heads.n_head;
      args.rows = count;
      args.q = reinterpret_cast<const __nv_bfloat16*>(device_queries.get());
      args.moments = moments.get() + row * shape.moments();
      ASSERT_EQ(add_query_moments(args, nullptr), cudaSuccess);
      ASSERT_EQ(train_codes(train_args(row, tokens), nullptr), cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  TrainCodesArgs train_args(uint32_t row, uint32_t tokens) const {
    TrainCodesArgs args;
    args.kv = paged();
    args.shape = shape;
    args.layer = kLayer;
    args.pages.tokens = tokens;
    std::copy_n(table.begin() + row * capacity, (tokens + kPageTokens - 1) / kPageTokens,
                args.pages.ids);
    args.iterations = kIterations;
    std::mt19937_64 draws(1);
    for (uint64_t& draw : args.draws) draw = draws();
    args.moments = moments.get() + row * shape.moments();
    args.book = book.get() + row * shape.book_floats();
    return args;
  }

  CodedRows rows(const DeviceArray<int32_t>& positions, const DeviceArray<CodedRow>& coded_rows,
                 const DeviceArray<uint32_t>& blocks) const {
    CodedRows args;
    args.shape = shape;
    args.rules = rules;
    args.positions = positions.get();
    args.rows = coded_rows.get();
    args.blocks = blocks.get();
    args.codes = codes.get();
    args.count = kRows;
    args.capacity = capacity;
    args.block_capacity = block_capacity;
    return args;
  }
  CodedRow row(uint32_t index) const {
    CodedRow row;
    row.book = book.get() + index * shape.book_floats();
    row.moments = moments.get() + index * shape.moments();
    row.coded = coded.get() + index * kLayers;
    row.ready = kLayers;
    return row;
  }
  /// Codes of all rows' pages.
  void code(uint32_t pages) {
    const DeviceArray<uint32_t> device_table(table), blocks(block_table);
    for (uint32_t index = 0; index < kRows; ++index) {
      CodeKeysArgs args;
      args.kv = paged();
      args.shape = shape;
      args.layer = kLayer;
      args.pages = device_table.get() + index * capacity;
      args.end = pages;
      args.book = row(index).book;
      args.blocks = blocks.get() + index * block_capacity;
      args.codes = codes.get();
      args.coded = row(index).coded;
      ASSERT_EQ(code_keys(args, nullptr), cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  /// [planes] of a token.
  uint8_t byte(const std::vector<uint8_t>& all, uint32_t row, uint32_t head, uint32_t token,
               uint32_t plane) const {
    const size_t block = block_table[row * block_capacity + token / kCodeBlock];
    return all[block * shape.block_bytes() + (shape.heads(kLayer) + head) * shape.plane_bytes() +
               plane * kCodeBlock + token % kCodeBlock];
  }

  CodeHeads heads;
  CodeShape shape;
  CodeRules rules;
  uint32_t capacity, block_capacity;
  std::mt19937 random;
  TestTiles tiles;
  std::vector<uint32_t> table, block_table;
  std::vector<uint16_t> q;
  DeviceArray<uint8_t> kv;
  DeviceArray<float> book, moments;
  DeviceArray<uint8_t> codes;
  DeviceArray<int32_t> coded;
};

inline constexpr float kScale = 0.3f;

/// Device arrays of a search.
struct CodeSearch {
  CodeSearch(CodeCase& c, std::vector<int32_t> at, std::vector<CodedRow> own)
      : positions(at),
        table(c.table),
        blocks(c.block_table),
        coded_rows(own),
        q(c.q),
        tops(size_t{code_words(c.group())} * kRows * c.heads.n_kv_head * c.capacity),
        scales(size_t{kRows} * c.heads.n_head),
        parts(code_parts(kRows, c.heads.n_head, c.heads.n_kv_head)),
        weights(size_t{kRows} * c.heads.n_kv_head * c.capacity),
        lists(size_t{kRows} * c.heads.n_kv_head * c.capacity, 0xff),
        numbers(size_t{kRows} * c.heads.n_kv_head * c.capacity, 0xff),
        keys(size_t{kRows} * c.heads.n_kv_head, 0xff) {
    args.rows = c.rows(positions, coded_rows, blocks);
    args.layer = kLayer;
    args.model_layer = kModelLayer;
    args.kv = c.paged();
    args.pages = table.get();
    args.n_head = c.heads.n_head;
    args.q = reinterpret_cast<const __nv_bfloat16*>(q.get());
    args.scale = kScale;
    args.tops = tops.get();
    args.scales = scales.get();
    args.parts = parts.get();
    args.weights = weights.get();
    args.lists = lists.get();
    args.numbers = numbers.get();
    args.keys = keys.get();
    args.list_capacity = c.capacity;
  }
  void run() {
    ASSERT_EQ(score_coded(args, nullptr), cudaSuccess);
    ASSERT_EQ(choose_coded(args, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  DeviceArray<int32_t> positions;
  DeviceArray<uint32_t> table, blocks;
  DeviceArray<CodedRow> coded_rows;
  DeviceArray<uint16_t> q;
  DeviceArray<uint2> tops;
  DeviceArray<float2> scales, parts;
  DeviceArray<float> weights;
  DeviceArray<uint32_t> lists, numbers;
  DeviceArray<int32_t> keys;
  CodeSearchArgs args;
};

}  // namespace reprise::kernels::cuda
