#include "attention/plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "base/try.h"
#include "kernels/attention.h"

namespace reprise {
namespace {

uint32_t list_index(const SelectionPart& part, uint32_t head, uint32_t group_size) {
  switch (part.split) {
    case HeadSplit::kShared:
      return 0;
    case HeadSplit::kPerKvHead:
      return head / group_size;
    case HeadSplit::kPerQueryHead:
      return head;
  }
  return 0;
}

// How many rows are of one tile, which looks at all that its rows see together: those before a gap.
uint32_t together(std::span<const Row> rows) {
  constexpr int32_t kFar = 512;
  uint32_t count = 1;
  while (count < rows.size() && rows[count].position - rows[count - 1].position < kFar) ++count;
  return count;
}

}  // namespace

AttentionPlan::AttentionPlan(const ModelConfig& config) : config_(config), everything_(1) {
  const KeyRange all = {0, std::numeric_limits<int32_t>::max()};
  everything_[0].add_list({&all, 1});
}

void AttentionPlan::clear() {
  kept_ = 0;
  changed_ = false;
  end_ = {};
}

Status AttentionPlan::add(uint32_t layer, uint32_t index, const SequenceStep& step,
                          std::span<const Row> rows, const Selection& selection) {
  Target target = {layer, index,
                   &step, selection.all ? everything_ : selection.parts,
                   false, selection.captured != nullptr};
  for (const SelectionPart& part : target.parts) {
    target.per_query_head |= part.split == HeadSplit::kPerQueryHead;
  }
  const bool can_stay = selection.all && !target.captures && rows.size() == 1 &&
                        step.phase == kernels::Phase::kDecode;
  const int32_t position = rows.front().position;
  const KeyRange seen = visible(layer, everything_[0], position, position);
  if (kept_ < added_.size() && can_stay) {
    const Added& before = added_[kept_];
    if (before.can_stay && before.index == index && before.row == step.first_row &&
        before.seen.begin == seen.begin && before.seen.end == seen.end) {
      end_ = before.end;
      ++kept_;
      return check_pages(target, everything_[0], before.list);
    }
  }
  drop_rest();
  REPRISE_CHECK(build(target, rows));
  end_ = {biases_.size(), blocks_.size(), reads_.size(),    jobs_.size(),
          merges_.size(), end_.partials,  end_.decode_keys, end_.decode_pages};
  added_.push_back(
      {can_stay, index, step.first_row, seen, lists_.empty() ? BlockList() : lists_[0], end_});
  kept_ = added_.size();
  return {};
}

// What steps added before clear() and have not added again.
void AttentionPlan::drop_rest() {
  changed_ = true;
  added_.resize(kept_);
  biases_.resize(end_.biases);
  blocks_.resize(end_.blocks);
  reads_.resize(end_.reads);
  jobs_.resize(end_.jobs);
  merges_.resize(end_.merges);
}

Status AttentionPlan::build(const Target& target, std::span<const Row> rows) {
  if (target.step->phase == kernels::Phase::kPrefill) {
    if (target.captures) {
      return fail(
          ErrorCode::kUnsupported,
          "layer {}: the policy captures results of prefill rows; only decode rows have them",
          target.layer);
    }
    REPRISE_CHECK(build_lists(target, rows.front().position, rows.back().position));
    add_prefill_tiles(target, rows);
    return {};
  }
  for (uint32_t row = 0; row < rows.size(); ++row) {
    REPRISE_CHECK(build_lists(target, rows[row].position, rows[row].position));
    add_decode_row(target, target.step->first_row + row);
  }
  return {};
}

KeyRange AttentionPlan::visible(uint32_t layer, const SelectionPart& part, int32_t first,
                                int32_t last) const {
  if (part.side != nullptr) return {0, part.side->length()};
  int32_t begin = 0;
  for (const int32_t window : {static_cast<int32_t>(config_.window[layer]), part.window}) {
    if (window > 0) begin = std::max(begin, first - window + 1);
  }
  return {begin, last + 1};
}

AttentionPlan::BlockList AttentionPlan::append_blocks(const SelectionPart& part, size_t list,
                                                      KeyRange visible) {
  constexpr int32_t kTokens = static_cast<int32_t>(kPageTokens);
  BlockList blocks = {static_cast<uint32_t>(blocks_.size()), 0, 0};
  size_t bias = 0;     // of the first key of the range
  int32_t packed = 0;  // keys of the ranges before
  for (size_t i = 0; i < part.offsets[list] && !part.bias.empty(); ++i) {
    bias += static_cast<size_t>(part.ranges[i].end - part.ranges[i].begin);
  }
  for (const KeyRange& range : part.list(list)) {
    const KeyRange seen = {std::max(range.begin, visible.begin), std::min(range.end, visible.end)};
    if (seen.begin < seen.end) {
      const size_t first = append_range(seen, part.packed ? range.begin - packed : 0, blocks.first);
      blocks.keys += static_cast<uint32_t>(seen.end - seen.begin);
      for (size_t i = first; i < blocks_.size() && !part.bias.empty(); ++i) {
        const auto begin = static_cast<int32_t>(blocks_[i].index) * kTokens;
        const int32_t from = std::max(seen.begin, begin);
        const auto keys = static_cast<size_t>(std::min(seen.end, begin + kTokens) - from);
        const size_t at = bias + static_cast<size_t>(from - range.begin);
        append_bias(std::span(part.bias).subspan(at, keys), from, blocks_[i]);
      }
    }
    bias += static_cast<size_t>(range.end - range.begin);
    packed += range.end - range.begin;
  }
  blocks.count = static_cast<uint32_t>(blocks_.size()) - blocks.first;
  return blocks;
}

// In few instructions a block: most lists are one range of most keys.
size_t AttentionPlan::append_range(KeyRange keys, int32_t shift, size_t list) {
  constexpr int32_t kTokens = static_cast<int32_t>(kPageTokens);
  const int32_t first = keys.begin / kTokens, last = (keys.end - 1) / kTokens;
  KeyBlock joined = {static_cast<uint32_t>(first), 0, first * kTokens - shift};
  if (blocks_.size() > list && blocks_.back().index == joined.index &&
      blocks_.back().position == joined.position) {
    joined = blocks_.back();
    blocks_.pop_back();
  }
  const size_t before = blocks_.size();
  blocks_.resize(before + static_cast<size_t>(last - first + 1));
  KeyBlock* out = &blocks_[before];
  for (int32_t block = first; block <= last; ++block) {
    *out++ = {static_cast<uint32_t>(block), kernels::kAllSlots, block * kTokens - shift};
  }
  blocks_[before].slots = static_cast<uint16_t>(kernels::kAllSlots << (keys.begin % kTokens));
  const int32_t unread = (last + 1) * kTokens - keys.end;
  blocks_.back().slots &= static_cast<uint16_t>(kernels::kAllSlots >> unread);
  blocks_[before].slots |= joined.slots;
  blocks_[before].bias = joined.bias;
  return before;
}

void AttentionPlan::append_bias(std::span<const float> bias, int32_t first_key, KeyBlock& block) {
  if (block.bias == kNoBias) {
    block.bias = static_cast<uint32_t>(biases_.size());
    biases_.resize(biases_.size() + kPageTokens, 0.0f);
  }
  std::copy(bias.begin(), bias.end(),
            biases_.begin() + block.bias + static_cast<size_t>(first_key) % kPageTokens);
}

AttentionPlan::BlockList AttentionPlan::restrict(BlockList list, KeyRange visible) const {
  constexpr uint32_t kTokens = kPageTokens;
  const auto begin = blocks_.begin() + list.first, end = begin + list.count;
  const auto from = std::partition_point(begin, end, [&](const KeyBlock& block) {
    return (block.index + 1) * kTokens <= static_cast<uint32_t>(visible.begin);
  });
  const auto to = std::partition_point(from, end, [&](const KeyBlock& block) {
    return block.index * kTokens < static_cast<uint32_t>(visible.end);
  });
  return {static_cast<uint32_t>(from - blocks_.begin()), static_cast<uint32_t>(to - from)};
}

Status AttentionPlan::build_lists(const Target& target, int32_t first, int32_t last) {
  const uint32_t group_size = config_.n_head / config_.n_kv_head;
  const uint32_t groups = target.per_query_head ? config_.n_head : config_.n_kv_head;
  lists_.assign(groups * target.parts.size(), {});
  for (size_t p = 0; p < target.parts.size(); ++p) {
    const SelectionPart& part = target.parts[p];
    const KeyRange range = visible(target.layer, part, first, last);
    for (uint32_t group = 0; group < groups; ++group) {
      BlockList& list = lists_[group * target.parts.size() + p];
      const uint32_t head = target.per_query_head ? group : group * group_size;
      if (group > 0 && part.split == HeadSplit::kShared) {
        list = lists_[p];
        continue;
      }
      list = append_blocks(part, list_index(part, head, group_size), range);
      REPRISE_CHECK(check_pages(target, part, list));
    }
  }
  return {};
}

Status AttentionPlan::check_pages(const Target& target, const SelectionPart& part,
                                  BlockList list) const {
  const SequenceKv& kv = part.side ? *part.side : *target.step->kv;
  const auto pages = kv.pages(part.pages_layer(target.layer));
  for (const KeyBlock& block : std::span(blocks_).subspan(list.first, list.count)) {
    if (pages[block.index] == kNoPage) {
      return fail(ErrorCode::kUnsupported,
                  "layer {}: the policy reads key {}, whose page it has evicted", target.layer,
                  block.index * kPageTokens);
    }
  }
  return {};
}

AttentionJob AttentionPlan::head_job(const Target& target, uint32_t group) const {
  const uint32_t group_size = config_.n_head / config_.n_kv_head;
  AttentionJob job;
  job.step = target.index;
  job.heads = target.per_query_head ? 1 : group_size;
  job.head = group * job.heads;
  job.partial = kDirect;
  job.first_read = static_cast<uint32_t>(reads_.size());
  return job;
}

void AttentionPlan::add_decode_row(const Target& target, uint32_t row) {
  const size_t groups = lists_.size() / std::max<size_t>(1, target.parts.size());
  const size_t head_groups = target.parts.empty() ? config_.n_kv_head : groups;
  const auto row_job = static_cast<std::ptrdiff_t>(jobs_.size());
  for (uint32_t group = 0; group < head_groups; ++group) {
    AttentionJob job = head_job(target, group);
    job.row = row;
    job.rows = 1;
    PieceMerge merge = {job.step, row, job.head, job.heads, static_cast<uint32_t>(end_.partials)};
    const size_t first_job = jobs_.size();
    for (const bool captured : {true, false}) {
      for (size_t p = 0; p < target.parts.size(); ++p) {
        if (captured != (target.captures && target.parts[p].captured)) continue;
        add_pieces(target, p, lists_[group * target.parts.size() + p], job, merge);
      }
      if (captured) merge.captured = merge.pieces;
    }
    count_decode_keys(target, group);
    if (merge.pieces == 1 && !target.captures) {
      jobs_[first_job].partial = kDirect;
    } else {
      end_.partials += merge.pieces * job.heads;
      merges_.push_back(merge);
    }
  }
  // KV heads that share a list read a piece one after the other: their tiles lie side by side. The
  // last piece comes first, so that the thread that stores the token mostly reads it.
  const auto first_block = [&](const AttentionJob& job) {
    return reads_[job.first_read].first_block;
  };
  std::stable_sort(jobs_.begin() + row_job, jobs_.end(),
                   [&](const AttentionJob& a, const AttentionJob& b) {
                     return first_block(a) > first_block(b);
                   });
}

void AttentionPlan::add_pieces(const Target& target, size_t part, BlockList list, AttentionJob job,
                               PieceMerge& merge) {
  uint32_t scale = 1;  // of a piece, and, beyond kFewPieces, of their number
  while (scale * scale * kFewPieces * kPieceBlocks < list.count) ++scale;
  const uint32_t usual = scale * kPieceBlocks;
  uint32_t pieces = (list.count + usual - 1) / usual;
  if (pieces > 2) pieces = (pieces + 2) / 4 * 4;  // the nearest
  for (uint32_t i = 0; i < pieces; ++i) {
    const uint32_t first = list.count * i / pieces, end = list.count * (i + 1) / pieces;
    job.first_read = static_cast<uint32_t>(reads_.size());
    job.reads = 1;
    job.partial = merge.partial + merge.pieces++ * job.heads;
    reads_.push_back({&target.parts[part], list.first + first, end - first});
    jobs_.push_back(job);
  }
}

// Query heads that share a KV head are charged for the union of what they read.
void AttentionPlan::count_decode_keys(const Target& target, uint32_t group) {
  const uint32_t sharers = target.per_query_head ? config_.n_head / config_.n_kv_head : 1;
  if ((group + 1) % sharers != 0) return;
  const size_t parts = target.parts.size();
  if (sharers == 1) {
    for (size_t p = 0; p < parts; ++p) {
      end_.decode_keys += lists_[group * parts + p].keys;
      end_.decode_pages += lists_[group * parts + p].count;
    }
    return;
  }
  for (size_t p = 0; p < parts; ++p) {
    union_.clear();
    for (uint32_t head = group + 1 - sharers; head <= group; ++head) {
      const BlockList list = lists_[head * parts + p];
      const auto first = blocks_.begin() + list.first;
      union_.insert(union_.end(), first, first + list.count);
    }
    std::sort(union_.begin(), union_.end(),
              [](const KeyBlock& a, const KeyBlock& b) { return a.index < b.index; });
    for (size_t i = 0; i < union_.size(); ++i) {
      uint16_t slots = union_[i].slots;
      while (i + 1 < union_.size() && union_[i + 1].index == union_[i].index) {
        slots |= union_[++i].slots;
      }
      end_.decode_keys += static_cast<uint64_t>(std::popcount(slots));
      ++end_.decode_pages;
    }
  }
}

void AttentionPlan::add_prefill_tiles(const Target& target, std::span<const Row> rows) {
  const size_t parts = target.parts.size();
  const size_t groups = parts == 0 ? config_.n_kv_head : lists_.size() / parts;
  const uint32_t count = static_cast<uint32_t>(rows.size());
  const uint32_t most = count > kTileRows ? kTileRows : kTileRows / 2;  // for more jobs
  for (uint32_t first = 0, size = 0; first < count; first += size) {
    size = together(rows.subspan(first, std::min(most, count - first)));
    for (uint32_t group = 0; group < groups; ++group) {
      AttentionJob job = head_job(target, group);
      job.row = target.step->first_row + first;
      job.rows = size;
      for (size_t p = 0; p < parts; ++p) {
        const KeyRange range = visible(target.layer, target.parts[p], rows[first].position,
                                       rows[first + size - 1].position);
        const BlockList list = restrict(lists_[group * parts + p], range);
        if (list.count > 0) reads_.push_back({&target.parts[p], list.first, list.count});
      }
      job.reads = static_cast<uint32_t>(reads_.size()) - job.first_read;
      job.joined = can_join(target.layer, job);
      jobs_.push_back(job);
    }
  }
}

bool AttentionPlan::can_join(uint32_t layer, const AttentionJob& job) const {
  if (job.reads != 2 || config_.window[layer] != 0) return false;
  const SelectionPart &side = *reads(job)[0].part, &own = *reads(job)[1].part;
  const auto plain = [](const SelectionPart& part) {
    return part.window == 0 && !part.packed && part.head_begin.empty();
  };
  return side.side != nullptr && own.side == nullptr && plain(side) && plain(own) &&
         side.max_query_position == own.max_query_position;
}

}  // namespace reprise
