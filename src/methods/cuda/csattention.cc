#include "methods/cuda/csattention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "base/try.h"
#include "methods/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "choosing keys";
constexpr auto kTokens = static_cast<int32_t>(kernels::cuda::kPageTokens);
constexpr uint32_t kIterations = 4;  // as on the host
constexpr uint32_t kMostTurns = 16;  // for which steps are captured

}  // namespace

CodeRules code_rules(const CsAttentionPolicy& policy) {
  CodeRules rules;
  rules.budget = static_cast<int32_t>(policy.options().budget);
  rules.sink = policy.sink();
  rules.window = policy.window();
  rules.keep = policy.options().keep;
  rules.activate = policy.activate_on_device();
  rules.staggered = kStaggered;
  rules.skip = policy.options().skip;
  rules.period = policy.period();
  rules.cosine = policy.options().cosine;
  return rules;
}

Status DeviceCsAttention::check(const CsAttentionPolicy& policy, const ModelConfig& config) {
  const CsAttentionOptions& options = policy.options();
  const bool all_parts = options.parts == 0 || options.parts >= config.head_dim / 2;
  const bool fits = options.index * 16.0f >= 1.0f;  // of bf16 KV, half a byte for two dims
  if (options.mode == "codes" && options.unit == "page" && options.bits <= 4 && all_parts && fits) {
    return {};
  }
  return fail(
      ErrorCode::kUnsupported,
      "policy {}: on --device cuda csattention has mode=codes with unit=page, bits up to 4, "
      "parts=0 and index from 0.0625 on, and, not after mac, mode=paper and mode=lists; use "
      "--device cpu",
      policy.spec());
}

DeviceCsAttention::DeviceCsAttention(const CsAttentionPolicy& policy, const ModelConfig& config,
                                     bool numbered)
    : config_(config),
      rules_(code_rules(policy)),
      clusters_(1u << policy.options().bits),
      iterations_(policy.options().iterations > 0 ? policy.options().iterations : kIterations),
      numbered_(numbered) {
  std::mt19937_64 random(policy.options().seed);
  for (uint32_t i = 0; i < kCodeEntries; ++i) draws_.push_back(random());
}

Status DeviceCsAttention::reserve(const DeviceRoom& room) {
  if (layers_.places.empty()) {
    REPRISE_CHECK(layers_.find(config_, *this));
    shape_ = {layers_.count(), config_.n_kv_head, config_.head_dim};
  }
  const uint64_t tokens = room.pool_pages / config_.n_layer * kernels::cuda::kPageTokens;
  REPRISE_CHECK(pool_->reserve(shape_, tokens, room.sequences));
  rows_ = room.sequences;
  capacity_ = room.capacity;
  block_capacity_ = capacity_ / kBlockPages + 1;
  const size_t blocks = size_t{rows_} * block_capacity_, heads = size_t{rows_} * config_.n_head;
  const size_t pages = size_t{rows_} * config_.n_kv_head * capacity_;
  const uint32_t words = code_words(config_.n_head / config_.n_kv_head);
  host_rows_.resize(rows_);
  host_blocks_.assign(blocks, 0);
  shown_.assign(rows_, 0);
  REPRISE_CHECK(sent_rows_.reserve(rows_, kWhat));
  REPRISE_CHECK(sent_blocks_.reserve(blocks, kWhat));
  REPRISE_CHECK(tops_.reserve(words * pages, kWhat));
  REPRISE_CHECK(scales_.reserve(heads, kWhat));
  REPRISE_CHECK(parts_.reserve(code_parts(rows_, config_.n_head, config_.n_kv_head), kWhat));
  REPRISE_CHECK(weights_.reserve(pages, kWhat));
  return reserve_lists();
}

// Lists of rows that do not search are made before the layers.
Status DeviceCsAttention::reserve_lists() {
  const bool periodic = rules_.period > 1;
  const size_t layers = layers_.count(), lists = size_t{rows_} * config_.n_kv_head;
  const size_t entries = (periodic ? layers : 1) * lists * capacity_;
  REPRISE_CHECK(lists_.reserve(entries, kWhat));
  if (numbered_) REPRISE_CHECK(numbers_.reserve(entries, kWhat));
  REPRISE_CHECK(keys_.reserve((periodic ? layers : 2) * lists, kWhat));
  if (!periodic) return {};
  const double share = rules_.keep * static_cast<double>(capacity_);
  const auto most = static_cast<uint32_t>(std::ceil(share)) + 1;
  pick_capacity_ = std::min(capacity_, std::max<uint32_t>(rules_.budget / kTokens + 1, most));
  pool_->keep_searches(compares() ? size_t{config_.n_head} * config_.head_dim : 0,
                       size_t{config_.n_kv_head} * pick_capacity_);
  return due_.reserve(layers * rows_, kWhat);
}

CodedRows DeviceCsAttention::rows_from(uint32_t first, uint32_t count) const {
  CodedRows rows;
  rows.shape = shape_;
  rows.rules = rules_;
  rows.rows = sent_rows_.device() + first;
  rows.blocks = sent_blocks_.device() + size_t{first} * block_capacity_;
  rows.codes = pool_->codes();
  rows.count = count;
  rows.block_capacity = block_capacity_;
  return rows;
}

uint64_t DeviceCsAttention::turn_of(uint32_t layer) const {
  const auto period = static_cast<uint32_t>(rules_.period), turns = std::min(period, kMostTurns);
  return uint64_t{1} << layer % period * turns / period;
}

// Rows that are at different turns let all layers search, so that steps are captured for a few
// cases only.
uint64_t DeviceCsAttention::variant(const DeviceGroup& group) const {
  constexpr uint64_t kAll = ~uint64_t{0};
  if (rules_.period == 1 || compares()) return kAll;
  uint64_t due = 0;
  for (uint32_t i = group.first; i < group.first + group.count; ++i) due |= steps_[i].due;
  return std::popcount(due) > 1 ? kAll : due;
}

Status DeviceCsAttention::begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) {
  kv_ = kv;
  for (const DeviceGroup& group : rows.groups) {
    if (group.policy != this || group.first >= rows.decode_rows) continue;
    CodeNewKeysArgs args;
    args.rows = rows_from(group.first, group.count);
    point_at(rows, group, layers_, kv, args);
    if (rules_.period > 1) {
      const size_t list = size_t{group.first} * config_.n_kv_head;
      args.due = due_.data() + group.first;
      args.lists = lists_.data() + list * rows.capacity;
      if (numbered_) args.numbers = numbers_.data() + list * rows.capacity;
      args.keys = keys_.data() + list;
      args.due_rows = rows_;
      args.list_capacity = rows.capacity;
      args.pick_capacity = pick_capacity_;
    }
    REPRISE_CUDA(code_new_keys(args, stream), "coding keys");
  }
  return {};
}

Status DeviceCsAttention::select(const DeviceQueries& queries, DeviceRead& read,
                                 cudaStream_t stream) {
  CodeSearchArgs args;
  args.rows = rows_from(queries.first, queries.count);
  args.rows.positions = queries.positions;
  args.rows.capacity = queries.capacity;
  args.layer = layers_.places[queries.layer];
  args.model_layer = queries.layer;
  args.kv = queries.kv;
  args.pages = queries.pages;
  args.n_head = queries.n_head;
  args.q = queries.q;
  args.scale = kQueryUnit;
  args.soft_cap = config_.attention_soft_cap;
  args.learns = !queries.guess;
  args.tops = tops_.data();
  args.scales = scales_.data();
  args.parts = parts_.data();
  args.weights = weights_.data();
  const size_t lists = size_t{rows_} * config_.n_kv_head;
  args.list_capacity = queries.capacity;
  args.lists = lists_.data();
  args.keys = keys_.data() + queries.layer % 2 * lists;
  if (numbered_) args.numbers = numbers_.data();
  if (rules_.period > 1) {
    const size_t first = args.layer * lists + size_t{queries.first} * config_.n_kv_head;
    args.lists += first * args.list_capacity;
    if (numbered_) args.numbers += first * args.list_capacity;
    args.keys = keys_.data() + first;
    args.due = due_.data() + size_t{args.layer} * rows_ + queries.first;
    args.pick_capacity = pick_capacity_;
  }
  const uint64_t due = variant({queries.first, queries.count, nullptr});
  if ((due & turn_of(queries.layer)) != 0) REPRISE_CHECK(search(args, stream));
  read.lists = {args.lists, nullptr, args.keys, config_.n_kv_head, args.list_capacity};
  read.numbers = args.numbers;
  return {};
}

Status DeviceCsAttention::search(const CodeSearchArgs& args, cudaStream_t stream) const {
  if (compares() && args.learns) REPRISE_CUDA(compare_queries(args, stream), "comparing queries");
  REPRISE_CUDA(score_coded(args, stream), "scoring keys");
  REPRISE_CUDA(choose_coded(args, stream), kWhat);
  return {};
}

bool DeviceCsAttention::chooses(const DeviceRow& row, CodeRange* range, CodeRange* last) const {
  const CsAttentionPolicy* host = find_policy<CsAttentionPolicy>(*row.policy);
  *range = code_range(rules_, row.layer, row.position);
  const auto* index = static_cast<const DeviceCodeIndex*>(host->device().state.get());
  if (!range->chooses || index == nullptr || index->built_end(row.layer) == 0) return false;
  const int32_t searched = index->layers()[layers_.places[row.layer]].searched;
  *last = rules_.period > 1 && !compares() && searched > 0
              ? code_range(rules_, row.layer, searched - 1)
              : *range;
  return true;
}

uint64_t DeviceCsAttention::keys_read(const DeviceRow& row) const {
  CodeRange range, last;
  if (!chooses(row, &range, &last)) return static_cast<uint64_t>(row.position) + 1;
  const int32_t others = rules_.sink + range.end - last.recent;
  return static_cast<uint64_t>(others + chosen_pages(rules_, last) * kTokens);
}

uint64_t DeviceCsAttention::index_bytes_read(const DeviceRow& row) const {
  CodeRange range, last;
  if (!chooses(row, &range, &last) || last.end < range.end) return 0;
  const auto others = static_cast<uint64_t>(rules_.sink + range.end - range.recent);
  const uint64_t book = shape_.parts() * kBookPart * sizeof(float);
  return config_.n_kv_head * (static_cast<uint64_t>(range.recent) * shape_.planes() + book +
                              others * config_.head_dim * sizeof(uint16_t));
}

}  // namespace reprise
