#include "fusion/few_keys.h"

#include <algorithm>

namespace reprise {
namespace {

constexpr int32_t kTokens = static_cast<int32_t>(kPageTokens);

int32_t whole_pages(int32_t tokens) { return tokens / kTokens * kTokens; }

void add_keys(Selection& selection, const SequenceKv* side, KeyRange keys) {
  if (keys.begin >= keys.end) return;
  SelectionPart& part = selection.parts.emplace_back();
  part.side = side;
  part.one_side_layer = side != nullptr;
  part.add_list({&keys, 1});
}

size_t most_packed(std::span<const ReadStep> steps) {
  int32_t most = 0;
  for (const ReadStep& step : steps) most = std::max(most, step.packed);
  return static_cast<size_t>(most);
}

}  // namespace

int32_t packed_before(std::span<const int32_t> keys, int32_t position) {
  return whole_pages(static_cast<int32_t>(std::ranges::lower_bound(keys, position) - keys.begin()));
}

std::vector<ReadStep> read_steps(const FusedPrompt& prompt, const FewReads& few,
                                 std::span<const int32_t> positions) {
  std::vector<ReadStep> steps;
  auto chosen = few.rows.begin();
  auto chunk = prompt.chunks.begin();
  int32_t first = 0, packed = 0, known = 0;  // of the chunk that ends at known
  for (uint32_t row = 0; row < positions.size(); ++row) {
    const int32_t at = positions[row];
    while (chosen != few.rows.end() && *chosen < at) ++chosen;
    const bool reads_few = chosen != few.rows.end() && *chosen == at;
    if (reads_few && at >= known) {
      while (chunk->end <= at) ++chunk;
      known = chunk->end;
      first = whole_pages(std::max(0, chunk->begin - static_cast<int32_t>(few.near)));
      packed = packed_before(few.keys, first);
    }
    const ReadStep own = {row, 1, reads_few ? packed : 0, reads_few ? first : 0};
    if (row > 0 && own.first == steps.back().first && own.packed == steps.back().packed) {
      ++steps.back().rows;
    } else {
      steps.push_back(own);
    }
  }
  return steps;
}

PackedKeys::PackedKeys(const FusedPrompt& prompt, const FewReads& few,
                       std::span<const int32_t> positions)
    : keys_(std::span(few.keys).first(most_packed(read_steps(prompt, few, positions)))),
      side_(keys_.size(), true) {}

Status PackedKeys::begin(PagePool& pool, uint32_t layer, int32_t end) {
  if (keys_.empty()) return {};
  layer_ = layer;
  end_ = end;
  packed_ = false;
  if (side_.own_all(pool, layer)) return {};
  return fail(ErrorCode::kOutOfMemory,
              "no KV memory for the {} keys of a layer that chosen rows read beside their chunk",
              keys_.size());
}

void PackedKeys::pack(const SequenceKv& kv, ThreadPool& pool) {
  if (packed_) return;
  packed_ = true;
  const size_t heads = kv.pool().layout().n_kv_head;
  const auto pages = static_cast<size_t>(packed_before(keys_, end_) / kTokens);
  pool.run(heads * pages, [&](size_t task, int) {
    const size_t head = task % heads, first = task / heads * kPageTokens;
    for (size_t key = first; key < first + kPageTokens; ++key) {
      side_.copy(layer_, head, kv, keys_[key], static_cast<int32_t>(key));
    }
  });
}

void ReadsFew::select(const QueryRows& rows, Selection& selection) {
  if (step_.packed > 0) packed_.pack(*rows.kv, *rows.pool);
  selection.all = false;
  add_keys(selection, packed_.pages(), {0, step_.packed});
  add_keys(selection, nullptr, {step_.first, rows.end()});
}

}  // namespace reprise
