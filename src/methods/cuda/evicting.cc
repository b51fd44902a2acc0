#include "methods/cuda/evicting.h"

#include <algorithm>
#include <utility>

#include "base/try.h"

namespace reprise {
namespace {

using namespace kernels::cuda;

constexpr uint32_t kTokens = kernels::cuda::kPageTokens;

uint32_t pages_of(uint32_t tokens) { return (tokens + kTokens - 1) / kTokens; }

}  // namespace

DeviceEvicting::DeviceEvicting(const ModelConfig& config, uint32_t side_tokens, uint32_t recent)
    : config_(config),
      side_tokens_(side_tokens),
      side_pages_(pages_of(side_tokens)),
      recent_(recent) {}

Status DeviceEvicting::reserve(const DeviceRoom& room) {
  constexpr std::string_view kWhat = "what is kept";
  rows_ = room.sequences;
  list_capacity_ = side_pages_ + room.capacity + 1;
  if (recent_ > 0) list_capacity_ = std::min(list_capacity_, side_pages_ + recent_ / kTokens + 2);
  stride_ = (side_pages_ + room.capacity) * kTokens;
  const size_t lists = size_t{config_.n_layer} * rows_;
  shown_.resize(rows_);
  host_rows_.resize(rows_);
  host_tables_.resize(lists * side_pages_);
  REPRISE_CHECK(side_tables_.reserve(host_tables_.size(), kWhat));
  REPRISE_CHECK(kept_rows_.reserve(rows_, kWhat));
  REPRISE_CHECK(list_pages_.reserve(lists * list_capacity_, kWhat));
  REPRISE_CHECK(list_slots_.reserve(lists * list_capacity_, kWhat));
  REPRISE_CHECK(list_keys_.reserve(lists, kWhat));
  REPRISE_CHECK(votes_.reserve(size_t{config_.n_head} * stride_, kWhat));
  REPRISE_CHECK(scores_.reserve(size_t{config_.n_kv_head} * stride_, kWhat));
  return chosen_.reserve(size_t{config_.n_kv_head} * side_tokens_, kWhat);
}

Status DeviceEvicting::plan(const DevicePlan& plan, cudaStream_t stream) {
  steps_.assign(plan.steps.size(), {});
  bool changed = false;
  for (const DeviceGroup& group : plan.groups) {
    if (group.policy != this) continue;
    for (uint32_t i = group.first; i < group.first + group.count; ++i) {
      const SequenceStep& step = plan.steps[i];
      REPRISE_CHECK(plan_step(step, plan.rows[step.first_row].position, steps_[i], stream));
      changed = show(i, steps_[i]) || changed;
    }
  }
  return changed ? send_tables(plan.turn, stream) : Status();
}

Status DeviceEvicting::plan_step(const SequenceStep& step, int32_t position, Step& planned,
                                 cudaStream_t stream) {
  auto& host = static_cast<EvictingPolicy&>(step.policy->undecorated());
  if (layers(host).empty()) return {};
  planned.host = &host;
  REPRISE_TRY(planned.state, state_of(host, stream));
  State& state = *planned.state;
  if (state.next && state.next->until == position) {
    recycle(state);
    keep(host, *state.next);
  }
  if (state.next && state.next->until >= position) state.next.reset();  // or cut back since
  Kept kept = host.kept(layers_.front());
  if (kept.until > position) {  // a row was computed ahead and given up
    kept.until = position;
    keep(host, kept);
  }
  if (step.phase == kernels::Phase::kPrefill) return plan_prompt(step, position, planned);
  return plan_row(host, state, position, step.kv->pool());
}

Status DeviceEvicting::plan_prompt(const SequenceStep& step, int32_t position, Step& planned) {
  EvictingPolicy& host = *planned.host;
  const Kept kept = host.kept(layers_.front());
  if (kept.begin > 0) host.read_beside(position);
  const int32_t end = position + static_cast<int32_t>(step.rows);
  const int32_t voters = this->voters(host, step.prompt_end);
  const int32_t first_voter = voters == 0 ? 0 : step.prompt_end - voters;
  planned.captured = std::max(position, first_voter);
  if (planned.captured >= end) return {};
  std::optional<Capture>& capture = planned.state->capture;
  const bool goes_on =
      capture && capture->end == planned.captured && capture->prompt_end == step.prompt_end;
  if (!goes_on) {
    constexpr std::string_view kWhat = "queries of a prompt's last rows";
    recycle(*planned.state);
    Capture own;
    if (!idle_captures_.empty()) {
      own = std::move(idle_captures_.back());
      idle_captures_.pop_back();
    }
    own.first = planned.captured;
    own.prompt_end = step.prompt_end;
    const size_t heads =
        size_t{config_.n_layer} * config_.n_head * static_cast<size_t>(step.prompt_end - own.first);
    REPRISE_CHECK(own.q.reserve(heads * config_.head_dim, kWhat));
    REPRISE_CHECK(own.lse.reserve(heads, kWhat));
    capture = std::move(own);  // none without memory: nothing goes on from it
  }
  capture->end = end;
  if (end < step.prompt_end) return {};
  const std::optional<Choice> choice = this->choice(host, kept, end);
  if (!choice) return {};
  if (!own_side(host, step.kv->pool())) {
    host.count_fallback();
    return {};
  }
  planned.choice = choice;
  planned.choice->known = kept.until;
  planned.state->next = choice->next;
  // The pages hold what is kept from now on; nothing shorter can be gone back to.
  keep(host, {kept.side, kept.begin, end});
  return {};
}

Result<DeviceEvicting::State*> DeviceEvicting::state_of(EvictingPolicy& host, cudaStream_t stream) {
  std::shared_ptr<void>& held = host.device_state();
  if (held == nullptr || held.use_count() > 1) {
    const auto from = std::static_pointer_cast<State>(held);
    auto own = std::make_shared<State>();
    if (from != nullptr) own->next = from->next;
    REPRISE_CHECK(own_state(*own, from.get(), stream));
    held = std::move(own);
  }
  return static_cast<State*>(held.get());
}

const std::vector<uint32_t>& DeviceEvicting::layers(const EvictingPolicy& host) {
  if (!layers_.empty()) return layers_;
  for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
    if (config_.window[layer] == 0 && !host.leaves_alone(layer)) layers_.push_back(layer);
  }
  return layers_;
}

bool DeviceEvicting::own_side(EvictingPolicy& host, PagePool& pool) {
  return side_pages_ == 0 || std::all_of(layers_.begin(), layers_.end(), [&](uint32_t layer) {
           return host.side().own_all(pool, layer);
         });
}

void DeviceEvicting::keep(EvictingPolicy& host, const Kept& kept) {
  for (const uint32_t layer : layers_) host.keep(layer, kept);
}

void DeviceEvicting::recycle(State& state) {
  if (state.capture) idle_captures_.push_back(std::move(*state.capture));
  state.capture.reset();
}

// Whether the device's tables have to be sent.
bool DeviceEvicting::show(uint32_t row, const Step& planned) {
  if (planned.host == nullptr) return false;
  const SequenceKv* side = planned.host->side().pages();
  Shown now = {0, 0, {}, planned.state->weights.data()};
  if (side != nullptr) {
    now.side = side->version();
    now.moves = side->pool().moves();
  }
  if (recent_ == 0) now.kept = planned.host->kept(layers_.front());
  if (now == shown_[row]) return false;
  shown_[row] = now;
  host_rows_[row] = {now.kept.side, now.kept.begin, planned.state->weights.data(),
                     planned.state->until.data()};
  for (const uint32_t layer : layers_) {
    if (side == nullptr) break;
    const auto pages = side->pages(layer);
    const auto table = host_tables_.begin() +
                       static_cast<std::ptrdiff_t>((size_t{layer} * rows_ + row) * side_pages_);
    std::transform(pages.begin(), pages.end(), table,
                   [&](uint32_t page) { return side->pool().frame(layer, page); });
  }
  return true;
}

Status DeviceEvicting::send_tables(uint32_t turn, cudaStream_t stream) {
  REPRISE_CHECK(side_tables_.send(host_tables_, turn, stream));
  return kept_rows_.send(host_rows_, turn, stream);
}

Status DeviceEvicting::begin(const DeviceRows& rows, const PagedKv&, cudaStream_t stream) {
  KeptLists args;
  args.tables = rows.tables;
  args.side_tables = side_tables_.device();
  args.layers = config_.n_layer;
  args.table_rows = rows.table_rows;
  args.capacity = rows.capacity;
  args.heavy = static_cast<int32_t>(side_tokens_);
  args.recent = static_cast<int32_t>(recent_);
  args.pages = list_pages_.data();
  args.slots = list_slots_.data();
  args.keys = list_keys_.data();
  args.list_rows = rows_;
  args.list_capacity = list_capacity_;
  args.side_capacity = side_pages_;
  for (const DeviceGroup& group : rows.groups) {
    if (group.policy != this || group.first >= rows.decode_rows) continue;
    args.positions = rows.positions + group.first;
    args.rows = kept_rows(group.first);
    args.first = group.first;
    args.count = group.count;
    REPRISE_CUDA(kept_lists(args, stream), "listing keys");
  }
  return {};
}

Status DeviceEvicting::select(const DeviceQueries& queries, DeviceRead& read, cudaStream_t) {
  const size_t list = size_t{queries.layer} * rows_ + queries.first, at = list * list_capacity_;
  read.lists = {list_pages_.data() + at, list_slots_.data() + at, list_keys_.data() + list, 1,
                list_capacity_};
  read.known = true;
  return {};
}

std::vector<PrefillPart> DeviceEvicting::prefill_parts(uint32_t layer, uint32_t step,
                                                       int32_t) const {
  if (steps_[step].host == nullptr) return {};
  const Kept& kept = steps_[step].host->kept(layer);
  if (kept.begin == 0) return {};
  PrefillPart own, side;
  own.first_key = kept.begin;
  if (kept.side == 0) return {own};
  side.pages = side_table(layer, step);
  side.end_key = kept.side;
  return {own, side};
}

Status DeviceEvicting::after_prefill(const DevicePrompt& prompt, cudaStream_t stream) {
  const Step& step = steps_[prompt.step];
  if (step.host == nullptr || !step.state->capture) return {};
  REPRISE_CHECK(capture(prompt, step, stream));
  if (!step.choice) return {};
  const Kept& kept = step.host->kept(prompt.layer);
  const kernels::cuda::KeptKeys keys = {side_table(prompt.layer, prompt.step), prompt.pages,
                                        kept.side, kept.begin, kept.until};
  return compress({prompt, *step.state, keys, *step.choice}, stream);
}

Status DeviceEvicting::capture(const DevicePrompt& prompt, const Step& step, cudaStream_t stream) {
  constexpr std::string_view kWhat = "keeping queries";
  const Capture& to = *step.state->capture;
  const size_t skipped = static_cast<size_t>(step.captured - prompt.rows.position);
  if (skipped >= prompt.rows.count) return {};
  const size_t heads = config_.n_head, count = (prompt.rows.count - skipped) * heads;
  const size_t at = (prompt.layer * static_cast<size_t>(to.prompt_end - to.first) +
                     static_cast<size_t>(step.captured - to.first)) *
                    heads;
  const size_t dim = config_.head_dim;
  REPRISE_CUDA(
      cudaMemcpyAsync(to.q.data() + at * dim, prompt.q + skipped * heads * dim,
                      count * dim * sizeof(__nv_bfloat16), cudaMemcpyDeviceToDevice, stream),
      kWhat);
  REPRISE_CUDA(cudaMemcpyAsync(to.lse.data() + at, prompt.lse + skipped * heads,
                               count * sizeof(float), cudaMemcpyDeviceToDevice, stream),
               kWhat);
  return {};
}

Status DeviceEvicting::compress(const Ranking& ranking, cudaStream_t stream) {
  const Capture& voters = *ranking.state.capture;
  const size_t first =
      ranking.prompt.layer * static_cast<size_t>(voters.prompt_end - voters.first) * config_.n_head;
  KeyVotesArgs votes;
  votes.kv = ranking.prompt.kv;
  votes.keys = ranking.keys;
  votes.n_head = config_.n_head;
  votes.q = voters.q.data() + first * config_.head_dim;
  votes.lse = voters.lse.data() + first;
  votes.rows = static_cast<uint32_t>(voters.end - voters.first);
  votes.first = voters.first;
  votes.scale = kQueryUnit;
  votes.soft_cap = config_.attention_soft_cap;
  votes.votes = votes_.data();
  votes.stride = stride_;
  REPRISE_CUDA(key_votes(votes, stream), "voting for keys");
  REPRISE_CHECK(score(ranking, stream));
  const Choice& choice = ranking.choice;
  const ChooseKeysArgs choose = {scores_.data(),    config_.n_kv_head, stride_,
                                 choice.candidates, choice.chosen,     choice.tail,
                                 chosen_.data()};
  REPRISE_CUDA(choose_keys(choose, stream), "choosing keys");
  CompactKeysArgs compact;
  compact.kv = ranking.prompt.kv;
  compact.keys = ranking.keys;
  compact.kept = chosen_.data();
  compact.count = choice.chosen + choice.tail;
  keep_weights(ranking, compact);
  REPRISE_CUDA(compact_keys(compact, stream), "copying keys");
  return {};
}

uint64_t DeviceEvicting::keys_read(const DeviceRow& row) const {
  const auto& host = static_cast<const EvictingPolicy&>(row.policy->undecorated());
  const Kept& kept = host.kept(row.layer);
  return static_cast<uint64_t>(kept.side + row.position + 1 - kept.begin);
}

}  // namespace reprise
