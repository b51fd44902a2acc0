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
  for (uint32_t row = 0; row < positions.size(); ++row) {
    ReadStep own = {row, 1, 0, 0};
    if (std::ranges::binary_search(few.rows, positions[row])) {
      const auto chunk =
          std::ranges::upper_bound(prompt.chunks, positions[row], {}, &PromptChunk::end);
      own.first = whole_pages(std::max(0, chunk->begin - static_cast<int32_t>(few.near)));
      own.packed = packed_before(few.keys, own.first);
    }
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
