#include "methods/cuda/csattention.h"

#include <algorithm>
#include <random>

#include "base/try.h"
#include "methods/cuda/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "choosing keys";
constexpr auto kTokens = static_cast<int32_t>(kernels::cuda::kPageTokens);
constexpr uint32_t kIterations = 4;  // as on the host

CodeRules rules_of(const CsAttentionPolicy& policy) {
  CodeRules rules;
  rules.budget = static_cast<int32_t>(policy.options().budget);
  rules.sink = policy.sink();
  rules.window = policy.window();
  rules.keep = policy.options().keep;
  rules.activate = policy.activate_on_device();
  rules.staggered = kStaggered;
  rules.skip = policy.options().skip;
  return rules;
}

}  // namespace

Status DeviceCsAttention::check(const CsAttentionPolicy& policy, const ModelConfig& config) {
  const CsAttentionOptions& options = policy.options();
  const bool all_parts = options.parts == 0 || options.parts >= config.head_dim / 2;
  const bool fits = options.index * 16.0f >= 1.0f;  // of bf16 KV, half a byte for two dims
  if (options.mode == "codes" && options.unit == "page" && options.bits <= 4 &&
      options.period == 1 && all_parts && fits) {
    return {};
  }
  return fail(ErrorCode::kUnsupported,
              "policy {}: on --device cuda csattention has mode=codes, unit=page, period=1, bits "
              "up to 4, parts=0 and index from 0.0625 on; use --device cpu",
              policy.spec());
}

DeviceCsAttention::DeviceCsAttention(const CsAttentionPolicy& policy, const ModelConfig& config)
    : config_(config),
      rules_(rules_of(policy)),
      clusters_(1u << policy.options().bits),
      iterations_(policy.options().iterations > 0 ? policy.options().iterations : kIterations) {
  std::mt19937_64 random(policy.options().seed);
  for (uint32_t i = 0; i < kCodeEntries; ++i) draws_.push_back(random());
}

Status DeviceCsAttention::reserve(const DeviceRoom& room) {
  if (layers_.empty()) {
    index_.assign(config_.n_layer, DeviceCodeIndex::kNone);
    for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
      if (config_.window[layer] > 0 || leaves_alone(layer)) continue;
      index_[layer] = static_cast<uint32_t>(layers_.size());
      layers_.push_back(layer);
    }
    shape_ = {static_cast<uint32_t>(layers_.size()), config_.n_kv_head, config_.head_dim};
    REPRISE_CHECK(upload(std::span<const uint32_t>(layers_), model_layers_, kWhat));
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
  for (auto& staged : staged_rows_) REPRISE_CHECK(staged.reserve(rows_, kWhat));
  for (auto& staged : staged_blocks_) REPRISE_CHECK(staged.reserve(blocks, kWhat));
  REPRISE_CHECK(device_rows_.reserve(rows_, kWhat));
  REPRISE_CHECK(device_blocks_.reserve(blocks, kWhat));
  REPRISE_CHECK(tops_.reserve(words * pages, kWhat));
  REPRISE_CHECK(scales_.reserve(heads, kWhat));
  REPRISE_CHECK(parts_.reserve(code_parts(rows_, config_.n_head, config_.n_kv_head), kWhat));
  REPRISE_CHECK(weights_.reserve(pages, kWhat));
  REPRISE_CHECK(lists_.reserve(pages, kWhat));
  return keys_.reserve(size_t{2} * rows_ * config_.n_kv_head, kWhat);
}

Status DeviceCsAttention::plan(const DevicePlan& plan, cudaStream_t stream) {
  pool_->begin_pass(stream);
  steps_.assign(plan.steps.size(), {});
  bool changed = false;
  for (const DeviceGroup& group : plan.groups) {
    if (group.policy != this) continue;
    for (uint32_t i = group.first; i < group.first + group.count; ++i) {
      const SequenceStep& step = plan.steps[i];
      const int32_t position = plan.rows[step.first_row].position;
      Step& own = steps_[i];
      own = {find_policy<CsAttentionPolicy>(*plan.acting[i]), nullptr, step.kv, step.prompt_end};
      REPRISE_TRY(own.index, index_of(*own.host, stream));
      CodedRow row;
      if (step.phase == kernels::Phase::kPrefill) {
        REPRISE_CHECK(plan_prompt(step, position, own, stream));
      } else {
        REPRISE_CHECK(plan_row(position, own, stream, row));
      }
      changed = show(i, own, row) || changed;
    }
  }
  return changed ? send_rows(plan.turn, stream) : Status();
}

Result<DeviceCodeIndex*> DeviceCsAttention::index_of(const CsAttentionPolicy& host,
                                                     cudaStream_t stream) {
  CsAttentionPolicy::Device& device = host.device();
  const KeyCodes* const restored = host.restored();
  if (device.state == nullptr || device.state.use_count() > 1) {
    auto own = std::make_shared<DeviceCodeIndex>(pool_, index_);
    REPRISE_CHECK(own->create(static_cast<const DeviceCodeIndex*>(device.state.get()), stream));
    device.state = std::move(own);
  }
  auto& index = static_cast<DeviceCodeIndex&>(*device.state);
  index.use();
  if (restored != nullptr) {
    REPRISE_TRY(const bool has_room, index.adopt(*restored, stream));
    if (!has_room) ++device.fallbacks;
    host.taken_over();
  }
  if (device.truncated != CsAttentionPolicy::Device::kNever) {
    REPRISE_CHECK(index.truncate(device.truncated, stream));
    device.truncated = CsAttentionPolicy::Device::kNever;
  }
  return &index;
}

// Room for what after_prefill() will write.
Status DeviceCsAttention::plan_prompt(const SequenceStep& step, int32_t position, Step& planned,
                                      cudaStream_t stream) {
  const CsAttentionPolicy& host = *planned.host;
  const int32_t end = position + static_cast<int32_t>(step.rows);
  if (end <= host.budget_at(end)) return {};
  bool builds = false, extends = false;
  int32_t recent = 0;
  for (const uint32_t layer : layers_) {
    const bool wants = host.wants_index(layer, step.prompt_end);
    builds = builds || (wants && end == step.prompt_end);
    extends = extends || (!wants && planned.index->built_end(layer) > 0);
    recent = std::max(recent, host.recent_end(layer, end));
  }
  if (!builds && !extends) return {};
  REPRISE_TRY(const bool has_room,
              planned.index->own_blocks(builds ? 0 : planned.index->least_coded(), recent, stream));
  if (has_room) return builds ? planned.index->own_book(stream) : Status();
  planned.index = nullptr;
  ++host.device().fallbacks;
  return {};
}

// Rows before this one shape the codebooks that are made here, and layers take turns.
Status DeviceCsAttention::plan_row(int32_t position, const Step& planned, cudaStream_t stream,
                                   CodedRow& row) {
  const CsAttentionPolicy& host = *planned.host;
  DeviceCodeIndex& index = *planned.index;
  const int32_t end = position + 1;
  const bool chooses = code_range(rules_, 0, position).chooses;
  bool has_room = true, rebuilt = false;
  for (uint32_t at = 0; at < layers_.size(); ++at) {
    DeviceCodeIndex::Layer& own = index.layers()[at];
    const int32_t shifted = end - kTokens * static_cast<int32_t>(layers_[at]);
    if (!host.wants_index(layers_[at], shifted + host.decode_rows_observed())) continue;
    if (chooses && own.seen > 0 && host.wants_index(layers_[at], shifted)) {
      REPRISE_TRY(has_room, index.own_blocks(0, host.recent_end(layers_[at], end), stream));
      if (!has_room) break;
      REPRISE_CHECK(index.own_book(stream));
      REPRISE_CHECK(build(planned, at, kv_, position, stream));
      rebuilt = true;
      continue;
    }
    own.seen = end;
    if (row.learn_end == 0) row.learn_begin = at;
    row.learn_end = at + 1;
  }
  while (row.ready < layers_.size() && index.layers()[row.ready].built > 0) ++row.ready;
  if (has_room && chooses && row.ready > 0) {
    int32_t recent = 0;
    for (const uint32_t layer : layers_) recent = std::max(recent, host.recent_end(layer, end));
    REPRISE_TRY(has_room, index.own_blocks(index.least_coded(), recent, stream));
  }
  if (!has_room) {
    ++host.device().fallbacks;
    row = {};
    return {};
  }
  if (rebuilt) REPRISE_CHECK(index.send_coded(stream));
  for (uint32_t at = 0; chooses && at < row.ready; ++at) {
    int32_t& coded = index.layers()[at].coded;
    coded = std::max(coded, host.recent_end(layers_[at], end));
  }
  row.book = index.book();
  row.moments = index.moments();
  row.coded = index.coded();
  return {};
}

Status DeviceCsAttention::build(const Step& step, uint32_t at, PagedKv kv, int32_t end,
                                cudaStream_t stream) {
  TrainCodesArgs args;
  args.kv = kv;
  args.shape = shape_;
  args.layer = at;
  args.pages = sample(*step.kv, layers_[at], end);
  args.clusters = clusters_;
  args.iterations = iterations_;
  std::copy(draws_.begin(), draws_.end(), args.draws);
  args.moments = step.index->moments();
  args.book = step.index->book();
  REPRISE_CUDA(train_codes(args, stream), "making a codebook");
  return step.index->begin_layer(at, end, stream);
}

// Evenly spread over [sink, end).
TrainPages DeviceCsAttention::sample(const SequenceKv& kv, uint32_t layer, int32_t end) const {
  const int32_t first = rules_.sink / kTokens, pages = (end + kTokens - 1) / kTokens - first;
  const int32_t count = std::min(pages, static_cast<int32_t>(kTrainPages));
  TrainPages chosen;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t page = first + i * pages / count;
    chosen.ids[i] = kv.pool().frame(layer, kv.pages(layer)[static_cast<size_t>(page)]);
    chosen.tokens += static_cast<uint32_t>(std::min(kTokens, end - page * kTokens));
  }
  return chosen;
}

bool DeviceCsAttention::show(uint32_t row, const Step& step, const CodedRow& shown) {
  CodedRow& last = host_rows_[row];
  const bool same = last.book == shown.book && last.moments == shown.moments &&
                    last.coded == shown.coded && last.ready == shown.ready &&
                    last.learn_begin == shown.learn_begin && last.learn_end == shown.learn_end;
  const uint64_t stamp = step.index != nullptr ? step.index->stamp() : 0;
  if (same && shown_[row] == stamp) return false;
  last = shown;
  shown_[row] = stamp;
  if (step.index == nullptr) return true;
  const auto blocks = step.index->blocks();
  std::copy(blocks.begin(), blocks.end(),
            host_blocks_.begin() + static_cast<std::ptrdiff_t>(size_t{row} * block_capacity_));
  return true;
}

Status DeviceCsAttention::send_rows(uint32_t turn, cudaStream_t stream) {
  std::copy(host_rows_.begin(), host_rows_.end(), staged_rows_[turn].data());
  std::copy(host_blocks_.begin(), host_blocks_.end(), staged_blocks_[turn].data());
  REPRISE_CUDA(
      cudaMemcpyAsync(device_rows_.data(), staged_rows_[turn].data(),
                      host_rows_.size() * sizeof(CodedRow), cudaMemcpyHostToDevice, stream),
      kWhat);
  REPRISE_CUDA(
      cudaMemcpyAsync(device_blocks_.data(), staged_blocks_[turn].data(),
                      host_blocks_.size() * sizeof(uint32_t), cudaMemcpyHostToDevice, stream),
      kWhat);
  return {};
}

CodedRows DeviceCsAttention::rows_from(uint32_t first, uint32_t count) const {
  CodedRows rows;
  rows.shape = shape_;
  rows.rules = rules_;
  rows.rows = device_rows_.data() + first;
  rows.blocks = device_blocks_.data() + size_t{first} * block_capacity_;
  rows.codes = pool_->codes();
  rows.count = count;
  rows.block_capacity = block_capacity_;
  return rows;
}

Status DeviceCsAttention::begin(const DeviceRows& rows, const PagedKv& kv, cudaStream_t stream) {
  kv_ = kv;
  for (const DeviceGroup& group : rows.groups) {
    if (group.policy != this || group.first >= rows.decode_rows) continue;
    CodeNewKeysArgs args;
    args.rows = rows_from(group.first, group.count);
    args.rows.positions = rows.positions + group.first;
    args.rows.capacity = rows.capacity;
    args.kv = kv;
    args.tables = rows.tables + size_t{group.first} * rows.capacity;
    args.table_rows = rows.table_rows;
    args.model_layers = model_layers_.data();
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
  args.layer = index_[queries.layer];
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
  args.lists = lists_.data();
  args.keys = keys_.data() + size_t{queries.layer % 2} * rows_ * config_.n_kv_head;
  args.list_capacity = queries.capacity;
  REPRISE_CUDA(score_coded(args, stream), "scoring keys");
  REPRISE_CUDA(choose_coded(args, stream), kWhat);
  read.lists = {args.lists, nullptr, args.keys, config_.n_kv_head, args.list_capacity};
  return {};
}

Status DeviceCsAttention::after_prefill(const DevicePrompt& prompt, cudaStream_t stream) {
  const Step& step = steps_[prompt.step];
  if (step.index == nullptr) return {};
  const uint32_t at = index_[prompt.layer];
  DeviceCodeIndex::Layer& own = step.index->layers()[at];
  const int32_t begin = prompt.rows.position;
  const int32_t end = begin + static_cast<int32_t>(prompt.rows.count);
  if (step.host->wants_index(prompt.layer, step.prompt_end)) {
    const QueryWindow window = step.host->observed(step.prompt_end);
    const int32_t first = std::max(begin, window.first), last = std::min(end, window.end);
    if (first < last) {
      const size_t skipped = static_cast<size_t>(first - begin) * config_.n_head;
      QueryMomentsArgs args;
      args.shape = shape_;
      args.layer = at;
      args.n_head = config_.n_head;
      args.rows = static_cast<uint32_t>(last - first);
      args.q = prompt.q + skipped * config_.head_dim;
      args.moments = step.index->moments();
      REPRISE_CUDA(add_query_moments(args, stream), "looking at queries");
      own.seen = last;
    }
    if (end < step.prompt_end || end <= step.host->budget_at(end)) return {};
    REPRISE_CHECK(build(step, at, prompt.kv, window.end, stream));
  }
  if (own.built == 0 || end <= step.host->budget_at(end)) return {};
  const int32_t recent = step.host->recent_end(prompt.layer, end);
  if (recent <= own.coded) return {};
  CodeKeysArgs args;
  args.kv = prompt.kv;
  args.shape = shape_;
  args.layer = at;
  args.pages = prompt.pages;
  args.first = static_cast<uint32_t>(own.coded / kTokens);
  args.end = static_cast<uint32_t>(recent / kTokens);
  args.book = step.index->book();
  args.blocks = device_blocks_.data() + size_t{prompt.step} * block_capacity_;
  args.codes = pool_->codes();
  args.coded = step.index->coded();
  REPRISE_CUDA(code_keys(args, stream), "coding keys");
  own.coded = recent;
  return {};
}

bool DeviceCsAttention::searches(const DeviceRow& row, CodeRange* range) const {
  const CsAttentionPolicy* host = find_policy<CsAttentionPolicy>(*row.policy);
  *range = code_range(rules_, row.layer, row.position);
  const auto& state = host->device().state;
  return range->chooses && state != nullptr && state->built_end(row.layer) > 0;
}

uint64_t DeviceCsAttention::keys_read(const DeviceRow& row) const {
  CodeRange range;
  if (!searches(row, &range)) return static_cast<uint64_t>(row.position) + 1;
  const int32_t others = rules_.sink + range.end - range.recent;
  return static_cast<uint64_t>(others + chosen_pages(rules_, range) * kTokens);
}

uint64_t DeviceCsAttention::index_bytes_read(const DeviceRow& row) const {
  CodeRange range;
  if (!searches(row, &range)) return 0;
  const auto others = static_cast<uint64_t>(rules_.sink + range.end - range.recent);
  const uint64_t book = shape_.parts() * kBookPart * sizeof(float);
  return config_.n_kv_head * (static_cast<uint64_t>(range.recent) * shape_.planes() + book +
                              others * config_.head_dim * sizeof(uint16_t));
}

}  // namespace reprise
