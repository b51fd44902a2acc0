// What happens to CSAttention's indexes on a device outside of captured steps.
#include <algorithm>

#include "base/try.h"
#include "methods/cuda/csattention.h"
#include "methods/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "choosing keys";
constexpr auto kTokens = static_cast<int32_t>(kernels::cuda::kPageTokens);

}  // namespace

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
    auto own = std::make_shared<DeviceCodeIndex>(pool_, layers_.places);
    REPRISE_CHECK(own->create(static_cast<const DeviceCodeIndex*>(device.state.get()), stream));
    device.state = std::move(own);
  }
  auto& index = static_cast<DeviceCodeIndex&>(*device.state);
  index.use();
  if (pick_capacity_ > 0) REPRISE_CHECK(index.own_searches());
  if (restored != nullptr) {
    REPRISE_TRY(const bool has_room, index.adopt(*restored, stream));
    if (!has_room) ++device.fallbacks;
    host.taken_over();
  }
  REPRISE_CHECK(device.forget([&](int32_t length) { return index.truncate(length, stream); }));
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
  for (const uint32_t layer : layers_.layers) {
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
Status DeviceCsAttention::plan_row(int32_t position, Step& planned, cudaStream_t stream,
                                   CodedRow& row) {
  const CsAttentionPolicy& host = *planned.host;
  DeviceCodeIndex& index = *planned.index;
  const int32_t end = position + 1;
  const bool chooses = code_range(rules_, 0, position).chooses;
  bool has_room = true, rebuilt = false;
  for (uint32_t at = 0; at < layers_.count(); ++at) {
    DeviceCodeIndex::Layer& own = index.layers()[at];
    const int32_t shifted = end - kTokens * static_cast<int32_t>(layers_.layers[at]);
    if (!host.wants_index(layers_.layers[at], shifted + host.decode_rows_observed())) continue;
    if (chooses && own.seen > 0 && host.wants_index(layers_.layers[at], shifted)) {
      REPRISE_TRY(has_room, index.own_blocks(0, host.recent_end(layers_.layers[at], end), stream));
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
  while (row.ready < layers_.count() && index.layers()[row.ready].built > 0) ++row.ready;
  if (has_room && chooses && row.ready > 0) {
    int32_t recent = 0;
    for (const uint32_t layer : layers_.layers)
      recent = std::max(recent, host.recent_end(layer, end));
    REPRISE_TRY(has_room, index.own_blocks(index.least_coded(), recent, stream));
  }
  if (!has_room) {
    ++host.device().fallbacks;
    row = {};
    return {};
  }
  if (rebuilt) REPRISE_CHECK(index.send_coded(stream));
  for (uint32_t at = 0; chooses && at < row.ready; ++at) {
    DeviceCodeIndex::Layer& own = index.layers()[at];
    own.coded = std::max(own.coded, host.recent_end(layers_.layers[at], end));
    if (search_holds(rules_, layers_.layers[at], own.searched, end)) continue;
    own.searched = end;
    planned.due |= turn_of(layers_.layers[at]);
  }
  for (uint32_t at = row.learn_begin; at < row.learn_end; ++at)
    planned.due |= turn_of(layers_.layers[at]);
  row.book = index.book();
  row.moments = index.moments();
  row.coded = index.coded();
  row.searched = index.searched();
  row.queries = index.queries();
  row.picks = index.picks();
  return {};
}

Status DeviceCsAttention::build(const Step& step, uint32_t at, PagedKv kv, int32_t end,
                                cudaStream_t stream) {
  TrainCodesArgs args;
  args.kv = kv;
  args.shape = shape_;
  args.layer = at;
  args.pages = sample(*step.kv, layers_.layers[at], end);
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
                    last.learn_begin == shown.learn_begin && last.learn_end == shown.learn_end &&
                    last.searched == shown.searched && last.queries == shown.queries &&
                    last.picks == shown.picks;
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
  REPRISE_CHECK(sent_rows_.send(host_rows_, turn, stream));
  return sent_blocks_.send(host_blocks_, turn, stream);
}

Status DeviceCsAttention::after_prefill(const DevicePrompt& prompt, cudaStream_t stream) {
  const Step& step = steps_[prompt.step];
  if (step.index == nullptr) return {};
  const uint32_t at = layers_.places[prompt.layer];
  DeviceCodeIndex::Layer& own = step.index->layers()[at];
  const int32_t begin = prompt.rows.position;
  const int32_t end = begin + static_cast<int32_t>(prompt.rows.count);
  if (step.host->wants_index(prompt.layer, step.prompt_end)) {
    const QueryWindow window = step.host->observed(step.prompt_end);
    const int32_t first = std::max(begin, window.first), last = std::min(end, window.end);
    if (first < last) {
      if (own.seen != first) {  // sums that are not continued are of a prompt that was given up
        REPRISE_CHECK(step.index->clear_moments(at, stream));
      }
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
  args.blocks = sent_blocks_.device() + size_t{prompt.step} * block_capacity_;
  args.codes = pool_->codes();
  args.coded = step.index->coded();
  REPRISE_CUDA(code_keys(args, stream), "coding keys");
  own.coded = recent;
  return {};
}

}  // namespace reprise
