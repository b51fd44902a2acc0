#include "methods/mac/mac.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/partial.h"
#include "base/float16.h"
#include "methods/mac/parts.h"
#include "methods/mac/seed.h"

namespace reprise {

namespace {

MacSettings settings_of(const MacOptions& options, const ModelConfig& config) {
  constexpr int32_t kAnyAge = std::numeric_limits<int32_t>::max();
  const float away = 1.0f - options.tau;
  MacSettings s;
  s.cut = {static_cast<int32_t>(options.sink), static_cast<int32_t>(options.band),
           static_cast<int32_t>(options.align)};
  s.window = static_cast<int32_t>(options.window);
  s.min_context = static_cast<int32_t>(options.min_context);
  s.max_age = options.chain == "age" ? static_cast<int32_t>(options.max_age) : kAnyAge;
  // The entry of position - window lies where this position's will be written.
  s.max_gap = s.window - 1;
  if (options.max_gap > 0) s.max_gap = std::min(s.max_gap, static_cast<int32_t>(options.max_gap));
  s.distance2 = 2.0f * static_cast<float>(config.head_dim) * away * away;
  s.max_error =
      options.max_error > 0.0f ? options.max_error : std::numeric_limits<float>::infinity();
  s.reuses = options.tau < 1.0f;
  s.ring_memory = options.ring_memory;
  s.split = options.mixed == "split";
  s.anchored = options.chain == "anchored";
  s.guarded = options.guard;
  s.fixes = options.lse_fix && config.attention_soft_cap == 0.0f;
  s.in_prompts = s.reuses && options.prefill == "reuse";
  if (s.in_prompts) s.cut.align = 1;
  if (options.mode != "paper") return s;
  s.cut.sink = 0;
  s.cut.align = 1;
  s.split = true;
  s.anchored = s.guarded = false;
  s.max_error = std::numeric_limits<float>::infinity();
  s.max_age = kAnyAge;
  return s;
}

/// The first context at which reuse can pay: of bf16 KV, where every head hits.
int32_t pays_from(const MacSettings& s, const ModelConfig& config, kernels::KvType ring) {
  const auto bytes = [&](kernels::KvType type, size_t heads) {
    const size_t tiles = heads * kernels::tile_bytes(type, config.head_dim);
    return static_cast<double>(tiles) / kernels::kPageTokens;
  };
  const MacLayerGuard guard(config.n_kv_head, size_t{config.n_head} * config.head_dim);
  const double compared = MacLayerGuard::kComparing * s.window * bytes(ring, config.n_head);
  const double key = 2 * bytes(kernels::KvType::kBF16, config.n_kv_head);
  return s.cut.sink + s.cut.band + static_cast<int32_t>(guard.least(compared) / key);
}

}  // namespace

MacPolicy::MacPolicy(const MacOptions& options, const ModelConfig& config,
                     std::unique_ptr<Policy> wrapped)
    : PolicyDecorator(std::move(wrapped)),
      config_(&config),
      group_(config.n_head / config.n_kv_head),
      settings_(settings_of(options, config)),
      by_layer_(options.layers),
      ring_type_(options.ring == "q8_0" ? kernels::KvType::kQ8_0 : kernels::KvType::kBF16),
      room_(config, settings_.ring_memory),
      layers_(new_layers()),
      compares_(config.n_kv_head, 1),
      matches_(config.n_head),
      risks_(config.n_head),
      reused_from_(config.n_head),
      states_(config.n_head),
      means_(settings_.fixes ? size_t{config.n_head} * config.head_dim : 0) {
  if (room_.limited()) ring_bytes_ = new_ring().bytes();
  if (!settings_.guarded || settings_.in_prompts) return;
  // Contexts that are too short in any case are not to cost anything.
  settings_.min_context = std::max(settings_.min_context, pays_from(settings_, config, ring_type_));
}

Result<std::unique_ptr<Policy>> MacPolicy::create(const MacOptions& options,
                                                  const ModelConfig& config,
                                                  std::unique_ptr<Policy> inner) {
  if (options.ring == "q8_0" && config.head_dim % 32 != 0) {
    return fail(ErrorCode::kUnsupported,
                "mac: ring=q8_0 needs heads of a multiple of 32 dimensions, not {}; use ring=f32",
                config.head_dim);
  }
  if (options.prefill == "reuse" && (options.lse_fix || options.band == 0)) {
    return fail(ErrorCode::kUnsupported,
                "mac: prefill=reuse keeps no mean keys and needs a band; leave lse_fix off and "
                "band above 0");
  }
  return std::make_unique<MacPolicy>(options, config, std::move(inner));
}

Status MacPolicy::check_inner(const Policy& inner) {
  const bool reuses = dynamic_cast<const MacPolicy*>(&inner) != nullptr;
  const bool keeps = inner.prefill_key() == kDensePrefill && inner.rebuilds() && !inner.evicts();
  if (keeps && !reuses) return {};
  return fail(ErrorCode::kUnsupported,
              "mac cannot stand left of {}: it needs a policy that keeps every key at its own "
              "position and reads prompts in full, such as full or quest",
              inner.spec());
}

std::vector<MacPolicy::Layer> MacPolicy::new_layers() const {
  Layer layer;
  layer.guard = {config_->n_kv_head, size_t{config_->n_head} * config_->head_dim};
  layer.heads.resize(config_->n_kv_head);
  return std::vector<Layer>(config_->n_layer, layer);
}

std::unique_ptr<Policy> MacPolicy::fork() const {
  auto copy = std::make_unique<MacPolicy>(*this);
  if (copy->room_.bytes() < room_.bytes()) {
    for (Layer& layer : copy->layers_) layer.ring.reset();
  }
  return copy;
}

MacRing MacPolicy::new_ring() const {
  return {*config_, static_cast<uint32_t>(settings_.window), ring_type_, settings_.fixes};
}

MacRing& MacPolicy::ring(uint32_t layer) {
  auto& ring = layers_[layer].ring;
  if (!ring) ring = new_ring();
  ring->settle();
  return *ring;
}

uint64_t MacPolicy::rings_bytes() const {
  uint64_t layers = 0;
  for (uint32_t layer = 0; layer < config_->n_layer; ++layer) {
    if (config_->window[layer] == 0 && !is_left_alone(layer)) ++layers;
  }
  return layers * ring_bytes_;
}

bool MacPolicy::has_room(uint32_t layer, size_t rows) {
  if (!room_.limited() || room_.bytes() > 0 || room_.take(rings_bytes())) return true;
  layers_[layer].ringless += rows;
  return false;
}

int32_t MacPolicy::observed_prompt_rows(int32_t prompt_end, int32_t kept) const {
  const int32_t inner_rows = inner().observed_prompt_rows(prompt_end, kept);
  // Rows are not read anew for a ring that there will not be; a device has room of its own.
  const bool room = device_.state != nullptr || room_.could_take(rings_bytes());
  if (!settings_.reuses || !room) return inner_rows;
  if (settings_.in_prompts) {
    // The first row of them reuses what a window of rows before it left, of which KV knows nothing.
    const int32_t start = std::min(kept, prompt_end - inner_rows);
    return remembers(start - settings_.window, start) ? prompt_end - start : prompt_end;
  }
  const int32_t rows = std::min(settings_.window, prompt_end);
  const bool held = remembers(prompt_end - rows, kept);
  return std::max(inner_rows, held ? std::min(rows, prompt_end - kept) : rows);
}

void MacPolicy::select(const QueryRows& rows, Selection& selection) {
  writes_ = false;
  asked_inner_ = true;
  clear_matches(1);
  const bool one_row = rows.phase == kernels::Phase::kDecode && rows.rows.size() == 1;
  if (!one_row || !settings_.reuses || !settings_.stores(rows.first())) {
    inner().select(rows, selection);
    if (rows.phase != kernels::Phase::kPrefill || !settings_.reuses) return;
    return settings_.in_prompts ? read_prompt(rows, selection) : seed(rows);
  }
  Layer& layer = layers_[rows.layer];
  if (!has_room(rows.layer, 1)) return inner().select(rows, selection);
  if (rests(rows)) return rest(rows, selection);
  const bool ready = this->ready(rows);
  if (ready) {
    choose_heads(layer, false);
    match(rows, rows.first());
  }
  take_results(rows);
  layer.reused_from = reused_from_;

  Selection given;  // of the inner policy
  asked_inner_ = wonders(layer) ||
                 std::find(reused_from_.begin(), reused_from_.end(), 0) != reused_from_.end();
  if (asked_inner_) inner().select(rows, given);
  if (asked_inner_ || inner().reads_everything()) note_inner(rows, given);
  reads_all_ = given.all;
  const int32_t cut = settings_.cut.at(rows.first());
  if (!divide_keys({settings_.cut.sink, cut, rows.end(), group_, reused_from_}, given, selection)) {
    selection = std::move(given);
    return;
  }
  writes_ = true;
  selection.shares = given.shares;
  selection.reused = &reused_;
  selection.captured = &captured_;
  if (settings_.fixes) selection.index_bytes_read += weighed_bytes(rows);
  if (ready) weigh(rows, selection);
}

void MacPolicy::clear_matches(size_t rows) {
  const size_t count = rows * config_->n_head;
  matches_.assign(count, {});
  risks_.assign(config_->n_head, 0.0f);
  reused_from_.assign(count, 0);
  states_.assign(count, {});
}

void MacPolicy::match(const QueryRows& rows, int32_t before, bool results) {
  const MacRing& from = ring(rows.layer);
  const size_t n_head = config_->n_head, count = rows.rows.size();
  std::vector<MacLimits> limits(count);
  for (size_t row = 0; row < count; ++row) {
    const int32_t position = rows.rows[row].position;
    limits[row] = {std::max(position - settings_.max_gap, settings_.cut.first_position()),
                   before - 1, position - std::min(position, settings_.max_age),
                   settings_.distance2, results};
  }
  // Of prompt rows shares are known once the rows are read: which call read them must not matter.
  const bool weighs = rows.phase == kernels::Phase::kDecode || !settings_.in_prompts;
  searches_.resize(static_cast<size_t>(rows.pool->size()));
  rows.pool->run(n_head, [&](size_t head, int thread) {
    if (compares_[head / group_] == 0) return;
    const float* q = rows.q + head * config_->head_dim;
    std::vector<MacMatch> found(count);
    nearest_entries(from, head, q, n_head * config_->head_dim, limits,
                    searches_[static_cast<size_t>(thread)], found.data());
    for (size_t row = 0; row < count; ++row) {
      MacMatch& match = matches_[row * n_head + head];
      match = found[row];
      if (!match.found()) continue;
      const MacState& state = from.state(head, from.slot(match.position));
      match.moved = moved(state, q + row * n_head * config_->head_dim, match);
      if ((weighs ? state.weight() : 1.0f) * match.moved > settings_.max_error) match = {};
    }
  });
  decide_groups();
}

float MacPolicy::moved(const MacState& state, const float* q, const MacMatch& match) const {
  float norm2 = 0.0f;
  for (size_t d = 0; d < config_->head_dim; ++d) {
    const float kept = to_float(to_bf16(q[d]));  // as it is compared
    norm2 += kept * kept;
  }
  return norm2 > 0.0f ? (state.drift + match.distance) / std::sqrt(norm2) : 0.0f;
}

void MacPolicy::decide_groups() {
  for (size_t head = 0; head < matches_.size(); ++head) {
    const auto first = matches_.begin() + static_cast<std::ptrdiff_t>(head / group_ * group_);
    const bool reused = settings_.split
                            ? matches_[head].found()
                            : std::all_of(first, first + static_cast<std::ptrdiff_t>(group_),
                                          [](const MacMatch& match) { return match.found(); });
    reused_from_[head] = reused ? settings_.cut.at(matches_[head].position) : 0;
  }
}

void MacPolicy::take_results(const QueryRows& rows) {
  const size_t head_dim = config_->head_dim;
  reused_ = empty_partial(1, config_->n_head, head_dim);
  for (size_t head = 0; head < matches_.size(); ++head) {
    if (reused_from_[head] == 0) continue;
    take_result(rows.layer, head, &reused_.out[head * head_dim], &reused_.lse[head]);
    if (!settings_.fixes) continue;
    constexpr float kMost = 2.0f;
    const MacRing& from = *layers_[rows.layer].ring;
    from.load_mean(head, from.slot(matches_[head].position), &means_[head * head_dim]);
    const float moved = mean_logit(rows.q_rotated, head) - states_[head].mean_logit;
    reused_.lse[head] += std::clamp(moved, -kMost, kMost);
  }
}

void MacPolicy::take_result(uint32_t layer, size_t index, float* out, float* lse) {
  const MacRing& from = *layers_[layer].ring;
  const MacMatch& match = matches_[index];
  const size_t head = index % config_->n_head, slot = from.slot(match.position);
  from.load_out(head, slot, out);
  MacState& state = states_[index];
  state = from.state(head, slot);
  *lse = state.lse;
  state.drift += match.distance;
  ++state.depth;
}

void MacPolicy::observe(const QueryRows& rows, const AttentionResult& result) {
  // Layers that select() is not called for are observed too.
  const bool asked_inner = std::exchange(asked_inner_, true);
  if (asked_inner && inner().observes(rows.layer, rows.phase)) inner().observe(rows, result);
  if (rows.phase == kernels::Phase::kPrefill) return weigh_seeds(rows, result.lse);
  if (!std::exchange(writes_, false)) return;
  MacSums& sums = layers_[rows.layer].sums;
  for (size_t head = 0; head < states_.size(); ++head) {
    MacState& state = states_[head];
    const bool reused = reused_from_[head] > 0;
    state.share = std::exp(std::min(0.0f, captured_.lse[head] - result.lse[head]));
    if (reused) sums.share += state.share;
    finish_state(rows.first(), reused, captured_.lse[head], state);
  }
  if (settings_.fixes) weigh_keys(rows);
  MacRing& to = ring(rows.layer);
  if (!to.write(rows.first(), rows.q, captured_.out.data(), states_, means_.data())) {
    ++sums.nonfinite;
    return;
  }
  to.set_peaks(rows.first());
  for (size_t head = 0; head < states_.size(); ++head) {
    const float weight = to.state(head, to.slot(rows.first())).weight();
    risks_[head] = reused_from_[head] > 0 ? weight * matches_[head].moved : 0.0f;
  }
}

void MacPolicy::finish_state(int32_t position, bool reused, float lse, MacState& state) const {
  if (!reused) state.anchor = position;
  // No entry rests on another one: what was reused is not stored again.
  const bool stays = !reused || !settings_.anchored;
  state.lse = stays ? lse : -std::numeric_limits<float>::infinity();
}

void MacPolicy::seed(const QueryRows& rows) {
  const auto row = std::find_if(rows.rows.begin(), rows.rows.end(), [&](const Row& each) {
    return seeds(each.position, rows.prompt_end);
  });
  if (row == rows.rows.end()) return;
  const auto first = static_cast<size_t>(row - rows.rows.begin());
  const size_t n_head = config_->n_head, width = n_head * config_->head_dim;
  const size_t count = rows.rows.size() - first;
  if (!has_room(rows.layer, count)) return;
  Partial prefix = empty_partial(count, n_head, config_->head_dim);
  std::vector<float> means(settings_.fixes ? count * width : 0);
  const std::vector<int32_t> begin(count * n_head, settings_.cut.sink);
  prefix_attention(
      rows_of(rows, first, count), *config_, settings_.cut, begin,
      {prefix.out.data(), prefix.lse.data(), settings_.fixes ? means.data() : nullptr});
  for (size_t i = 0; first + i < rows.rows.size(); ++i) {
    const int32_t position = rows.rows[first + i].position;
    for (size_t head = 0; head < n_head; ++head) {
      states_[head] = {};
      states_[head].anchor = position;
      states_[head].lse = prefix.lse[i * n_head + head];
    }
    if (settings_.fixes) {
      std::copy_n(&means[i * width], width, means_.begin());
      for (size_t head = 0; head < n_head; ++head) {
        states_[head].mean_logit = mean_logit(rows.q_rotated + (first + i) * width, head);
      }
    }
    const float* q = rows.q + (first + i) * width;
    if (!ring(rows.layer).write(position, q, &prefix.out[i * width], states_, means_.data())) {
      ++layers_[rows.layer].sums.nonfinite;
    }
  }
}

void MacPolicy::weigh_seeds(const QueryRows& rows, const float* lse) {
  auto& ring = layers_[rows.layer].ring;
  if (!ring || !(settings_.in_prompts || seeds(rows.end() - 1, rows.prompt_end))) return;
  for (const Row& row : rows.rows) {
    // Rows that fill the ring take the place of what it held before them.
    ring->set_shares(row.position, lse, row.position + settings_.window != rows.prompt_end);
    lse += config_->n_head;
  }
  if (rows.end() == rows.prompt_end) show_guard(rows);
}

void MacPolicy::truncate(int32_t length) {
  inner().truncate(length);
  const MacLayerGuard fresh = new_layers().front().guard;
  for (Layer& layer : layers_) {
    if (layer.ring) layer.ring->truncate(length);
    // What guards saw may be of tokens that are gone: the next prompt's last rows tell them anew.
    layer.guard = fresh;
    layer.warm = 0;
    layer.inner_keys.clear();
    layer.reused_from.clear();
  }
  device_.truncate(length);
}

uint64_t MacPolicy::state_bytes() const {
  uint64_t bytes = inner().state_bytes();
  if (device_.state != nullptr) bytes += device_.state->bytes();
  if (restored_ != nullptr) bytes += restored_->bytes.size();
  for (const Layer& layer : layers_) bytes += layer.ring ? layer.ring->bytes() : 0;
  return bytes;
}

}  // namespace reprise
