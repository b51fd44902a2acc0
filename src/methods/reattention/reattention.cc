#include "methods/reattention/reattention.h"

#include <algorithm>
#include <numeric>

#include "base/try.h"
#include "methods/key_list.h"
#include "methods/reattention/scan.h"
#include "model/rope.h"

namespace reprise {
namespace {

constexpr uint32_t kLocal = 4096, kScope = 8192, kChunk = 512, kEarlyShare = 4, kInterval = 12;
constexpr int32_t kPromptRows = 4;  // that share a scan, at most
constexpr std::string_view kGivesWay =
    "gate, fill, heads, several decode-picks, spans that leave no room";

uint32_t trained_of(const ModelConfig& config) {
  return config.rope_context > 0 ? config.rope_context : config.context;
}

uint32_t local_of(const ReAttentionOptions& o, uint32_t trained) {
  if (o.local > 0) return o.local;
  return trained > 0 ? std::clamp(trained / 8, 1u, kLocal) : kLocal;
}

uint32_t spans_of(const ReAttentionOptions& o, const ModelConfig& config) {
  const uint32_t trained = trained_of(config), always = o.sink + local_of(o, trained);
  if (o.spans > 0) return o.spans;
  const auto most = [&](uint32_t scope) { return scope > always ? (scope - always) / o.span : 0; };
  if (o.stride > 0) return most(trained > 0 ? std::min(kScope, trained / 2) : kScope);
  return trained > 0 ? std::min(config.n_head, most(trained)) : config.n_head;
}

size_t decode_picks_of(const ReAttentionOptions& o, const ModelConfig& config) {
  if (o.decode_picks > 0) return o.decode_picks;
  return std::max<size_t>(1, (spans_of(o, config) + config.n_head - 1) / config.n_head);
}

/// Spans that a row reads at most.
uint32_t most_spans_of(const ReAttentionOptions& o, const ModelConfig& config) {
  const uint32_t spans = spans_of(o, config);
  if (o.agree <= 0.0f) return spans;
  return std::max(spans, (o.own == "always" ? spans : 0) + uint32_t{Agreement::kRegions});
}

/// Keys that a row reads at most beside the most recent ones.
uint64_t others_of(const ReAttentionOptions& o, const ModelConfig& config) {
  return o.sink + uint64_t{most_spans_of(o, config)} * o.span;
}

/// With what options are that are left out and depend on others.
ReAttentionOptions completed(ReAttentionOptions o, const ModelConfig& config) {
  const uint32_t trained = trained_of(config);
  const bool given = o.agree != ReAttentionOptions{}.agree;
  const bool room =
      trained == 0 || others_of(o, config) + std::max(local_of(o, trained), o.wide) <= trained;
  const bool fits =
      o.gate <= 0.0f && !o.fill && o.heads == "all" && room && decode_picks_of(o, config) == 1;
  if (!given && !fits) o.agree = 0.0f;
  if (o.lead <= 0.0f && (o.agree > 0.0f || o.gate > 0.0f)) o.lead = 2.0f;
  return o;
}

/// The most recent keys that a row reads.
uint32_t wide_of(const ReAttentionOptions& o, const ModelConfig& config) {
  const uint32_t trained = trained_of(config), local = local_of(o, trained);
  if ((o.gate <= 0.0f && o.agree <= 0.0f) || o.wide > 0) return std::max(local, o.wide);
  if (trained == 0) return 4 * local;
  const auto others = static_cast<uint32_t>(std::min<uint64_t>(others_of(o, config), trained));
  return std::max(local, std::min(4 * local, trained - others));
}

/// [pairs][2] The mean of the angles of distances [first, last), times the factor that scaling has
/// for keys: products of queries turned so with stored keys are logits. Empty: so they are as it
/// is.
std::vector<float> mean_angles(const RopeConfig& config, uint32_t context, int32_t first,
                               int32_t last) {
  const float factor = config.attention_factor;
  if (config.dims == 0 || (last == 1 && factor == 1.0f)) return {};
  const RopeTable table(config, context);
  std::vector<float> angles(table.pairs() * 2);
  std::vector<double> sums(angles.size());
  for (int32_t distance = first; distance < last; ++distance) {
    table.cos_sin(distance, angles.data());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += angles[i];
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    angles[i] = static_cast<float>(sums[i] / std::max(1, last - first) * factor);
  }
  return angles;
}

ReAttentionPolicy::Settings settings_of(const ReAttentionOptions& o, const ModelConfig& config,
                                        VotingHeads heads) {
  ReAttentionPolicy::Settings s;
  s.sink = static_cast<int32_t>(o.sink);
  s.local = static_cast<int32_t>(local_of(o, trained_of(config)));
  s.wide = static_cast<int32_t>(wide_of(o, config));
  s.span = static_cast<int32_t>(o.span);
  s.chunk = o.chunk > 0 ? static_cast<int32_t>(o.chunk) : std::min<int32_t>(kChunk, s.local);
  s.alone = static_cast<int32_t>(o.alone);
  s.activate = static_cast<int32_t>(o.activate > 0 ? o.activate : trained_of(config));
  const uint32_t early = o.early > 0 ? o.early : trained_of(config) / kEarlyShare;
  s.early = std::min(s.activate, static_cast<int32_t>(early));
  s.stride = static_cast<int32_t>(o.stride);
  const uint32_t interval = o.agree > 0.0f ? kInterval : 1;
  s.interval = static_cast<int32_t>(o.interval > 0 ? o.interval : interval);
  s.asks_for_interval = o.interval > 1;
  s.spans = spans_of(o, config);
  s.picks = o.picks;
  s.decode_picks = decode_picks_of(o, config);
  s.apart_spans = o.own == "never" ? 0 : s.spans;
  s.agreed_spans = o.own == "always" ? s.spans : 0;
  s.fill = o.fill;
  s.soft = o.soft;
  s.least = o.least;
  s.lead = o.lead / config.attention_scale;
  s.gate = o.gate;
  s.agree = o.agree;
  s.heads = std::move(heads);
  s.near.resize(3);
  if (o.least > 0.0f) {
    const auto set = [&](LayerRope kind, const RopeConfig& rope) {
      s.near[static_cast<size_t>(kind)] =
          std::make_shared<NearAngles>(rope, trained_of(config), s.sink + s.local);
    };
    set(LayerRope::kGlobal, config.rope);
    set(LayerRope::kLocal, config.local_rope);
    s.near[static_cast<size_t>(LayerRope::kNone)] = std::make_shared<NearAngles>();
  }
  s.angles.resize(3);
  const bool mean = o.score == "mean";
  const int32_t first = mean ? s.local : 0;  // distances
  const int32_t last = mean ? s.local + static_cast<int32_t>(s.spans) * s.span : 1;
  s.angles[static_cast<size_t>(LayerRope::kGlobal)] =
      mean_angles(config.rope, trained_of(config), first, last);
  s.angles[static_cast<size_t>(LayerRope::kLocal)] =
      mean_angles(config.local_rope, trained_of(config), first, last);
  return s;
}

}  // namespace

Result<std::unique_ptr<Policy>> ReAttentionPolicy::create(const ReAttentionOptions& given,
                                                          const ModelConfig& config) {
  const ReAttentionOptions options = completed(given, config);
  const uint32_t trained = trained_of(config), local = local_of(options, trained);
  const uint32_t recent = wide_of(options, config);
  const uint64_t scope = others_of(options, config) + recent;
  if (trained > 0 && scope > trained) {
    return fail(ErrorCode::kInvalidArgument,
                "reattention: sink {} + {} spans of {} + {} {} are {} keys, more than the {} "
                "that the model was trained on; choose less",
                options.sink, most_spans_of(options, config), options.span,
                recent > local ? "wide" : "local", recent, scope, trained);
  }
  if (options.chunk > local) {
    return fail(ErrorCode::kInvalidArgument,
                "reattention: chunk={} is more than local={}, so that rows would not read the keys "
                "before them; choose a smaller chunk",
                options.chunk, local);
  }
  if (options.gate > 0.0f && options.interval > 1) {
    return fail(ErrorCode::kInvalidArgument,
                "reattention: gate={} counts the heads that lead in every row; leave interval out",
                options.gate);
  }
  if (options.gate > 0.0f && options.agree > 0.0f) {
    return fail(ErrorCode::kInvalidArgument,
                "reattention: gate={} and agree={} are two ways to tell when to look far; leave "
                "one out",
                options.gate, options.agree);
  }
  if (options.own != ReAttentionOptions{}.own && options.agree <= 0.0f) {
    return fail(ErrorCode::kInvalidArgument,
                "reattention: own={} applies where heads agree; leave out agree=0, and what agree "
                "gives way to ({})",
                options.own, kGivesWay);
  }
  if (options.fill && options.agree > 0.0f) {
    return fail(ErrorCode::kInvalidArgument,
                "reattention: fill=true gives room to a row's own spans, agree={} to those that "
                "heads agree on; leave one out",
                options.agree);
  }
  if (options.wide > 0 && options.gate <= 0.0f && options.agree <= 0.0f) {
    return fail(ErrorCode::kInvalidArgument,
                "reattention: wide={} applies where a gate is closed or no heads agree; leave out "
                "agree=0, and what agree gives way to ({}), or give local={}",
                options.wide, kGivesWay, options.wide);
  }
  REPRISE_TRY(VotingHeads heads, VotingHeads::parse(options.heads, config));
  return std::unique_ptr<Policy>(new ReAttentionPolicy(options, config, std::move(heads)));
}

ReAttentionPolicy::ReAttentionPolicy(const ReAttentionOptions& o, const ModelConfig& config,
                                     VotingHeads heads)
    : config_(&config),
      settings_(settings_of(o, config, std::move(heads))),
      layers_(config.n_layer) {}

void ReAttentionPolicy::select(const QueryRows& rows, Selection& selection) {
  const int32_t length = rows.end();
  const KeyRange middle = middle_of(rows);
  if (middle.begin >= middle.end) return;
  Layer& layer = layers_[rows.layer];
  const int32_t recent = recent_of(rows, middle);
  if (is_watched(rows)) {
    ++stats_.scans;
    if (looks_far(rows, middle)) ++stats_.open;
  }
  const std::vector<int32_t> agreed_on = agreed(rows, middle);  // before this layer's own votes
  if (!keeps_spans(rows, layer) && settings_.votes(rows.layer, rows.first(), rows.rows.size())) {
    const auto pages = static_cast<uint64_t>(middle.end - middle.begin) / kPageTokens + 1;
    selection.index_bytes_read = pages * config_->n_kv_head * rows.kv->pool().layout().tile_bytes();
  }
  look(rows, middle, layer);
  selection.all = false;
  SelectionPart& part = selection.parts.emplace_back();
  part.packed = true;
  append_range({0, settings_.sink}, 0, part.ranges);
  for (const KeyRange& span : spans_of(rows, middle, layer, agreed_on)) {
    append_range({span.begin, std::min(span.end, recent)}, 0, part.ranges);
  }
  append_range({recent, length}, 0, part.ranges);
  part.offsets.push_back(static_cast<uint32_t>(part.ranges.size()));
  if (rows.phase != kernels::Phase::kDecode) return;
  stats_.rows += rows.rows.size();
  stats_.keys += rows.rows.size() * static_cast<uint64_t>(keys_in(part.ranges));
  stats_.ranges += rows.rows.size() * part.ranges.size();
}

void ReAttentionPolicy::foresee(const QueryRows& rows) {
  together_ = {};
  const auto count = static_cast<size_t>(
      std::max(0, rows.end() - std::max(rows.first(), rows.prompt_end - settings_.alone)));
  QueryRows first = rows;
  first.rows = rows.rows.subspan(rows.rows.size() - count).first(std::min<size_t>(count, 1));
  if (count < 2 || is_left_alone(rows.layer) || !settings_.votes(rows.layer)) return;
  const KeyRange middle = middle_of(first);  // those of later rows hold more
  if (middle.begin >= middle.end) return;
  std::vector<size_t> which(count);
  std::iota(which.begin(), which.end(), rows.rows.size() - count);
  together_ = {first.first(), rows.end(), middle,
               best_keys(rows, which, middle, settings_.ranks_of(1), angles(rows.layer), *config_)};
}

KeyRange ReAttentionPolicy::middle_of(const QueryRows& rows) const {
  const int32_t length = rows.end();
  if (length <= settings_.reads_all_until(rows.prompt_end)) return {};
  return {settings_.sink, std::min(rows.first(), length - settings_.local)};
}

int32_t ReAttentionPolicy::reads_from(const QueryRows& rows) const {
  const KeyRange middle = middle_of(rows);
  const bool scans = middle.begin < middle.end &&
                     settings_.votes(rows.layer, rows.first(), rows.rows.size()) &&
                     !keeps_spans(rows, layers_[rows.layer]);
  if (!scans) return rows.end();
  return settings_.least > 0.0f ? 0 : middle.begin;  // of which the sinks' weight is a part
}

bool ReAttentionPolicy::keeps_spans(const QueryRows& rows, const Layer& layer) const {
  const bool decodes = rows.phase == kernels::Phase::kDecode;
  // Last rows of a prompt wait for each other where heads agree, else they are scanned for
  // together. The very last one, which asks, and an answer's first one look in all layers.
  const bool together = settings_.agree <= 0.0f || rows.rows.size() > 1;
  if (!decodes && (together || rows.end() == rows.prompt_end)) return false;
  const int32_t interval = decodes ? settings_.interval : std::min(settings_.interval, kPromptRows);
  const int32_t since = decodes ? rows.prompt_end : rows.prompt_end - settings_.alone;
  const auto turn = [&](int32_t end) {
    return (end - since - 1 + static_cast<int32_t>(rows.layer)) / interval;
  };
  return layer.prompt_end == rows.prompt_end && layer.chosen_at > since &&
         turn(layer.chosen_at) == turn(rows.end());
}

std::vector<Candidate> ReAttentionPolicy::candidates(const QueryRows& rows, KeyRange middle) {
  if (!settings_.votes(rows.layer, rows.first(), rows.rows.size())) return {};
  const auto picks = pick(rows, middle);
  if (!settings_.soft) return count_votes(picks);
  return count_soft_votes(picks, settings_.picks_of(rows.rows.size()), config_->attention_scale);
}

void ReAttentionPolicy::look(const QueryRows& rows, KeyRange middle, Layer& layer) {
  if (keeps_spans(rows, layer)) {
    for (const int32_t key : layer.voted) agreement_.add(rows.first(), key);
    return;
  }
  layer.voted.clear();
  layer.own = candidates(rows, middle);
  if (!settings_.fill) layer.own.resize(std::min(layer.own.size(), settings_.spans));
  layer.chosen_at = rows.rows.size() == 1 ? rows.end() : -1;
  layer.prompt_end = rows.prompt_end;
}

std::vector<KeyRange> ReAttentionPolicy::spans_of(const QueryRows& rows, KeyRange middle,
                                                  const Layer& layer,
                                                  std::span<const int32_t> agreed) const {
  const auto budget = static_cast<int64_t>(settings_.spans) * settings_.span;
  if (settings_.fill) return fill(layer.own, settings_.spans, budget, settings_.span, middle);
  const size_t own = settings_.own_spans(rows.rows.size(), !agreed.empty());
  std::vector<Candidate> read(layer.own.begin(),
                              layer.own.begin() + std::min(own, layer.own.size()));
  for (const int32_t page : agreed) read.push_back({.key = Agreement::middle_of(page)});
  return cover(read, settings_.span, middle);
}

std::vector<int32_t> ReAttentionPolicy::agreed(const QueryRows& rows, KeyRange middle) const {
  if (settings_.agree <= 0.0f || rows.rows.size() > 1) return {};
  std::vector<int32_t> pages =
      agreement_.regions(rows.first(), settings_.agree * static_cast<double>(voters()));
  std::erase_if(pages, [&](int32_t page) {
    const int32_t key = Agreement::middle_of(page);
    return key < middle.begin || key >= middle.end;
  });
  return pages;
}

std::vector<kernels::RankedKey> ReAttentionPolicy::pick(const QueryRows& rows, KeyRange middle) {
  const auto step = static_cast<size_t>(std::max(1, settings_.stride));
  std::vector<size_t> which;  // counted from the last row, which is always among them
  for (size_t row = rows.rows.size(); row > 0; row -= std::min(step, row)) {
    which.push_back(row - 1);
  }
  const size_t picks = settings_.picks_of(rows.rows.size());
  const size_t ranks = settings_.ranks_of(rows.rows.size());
  const bool alone = rows.rows.size() == 1;
  auto best = alone ? best_of_row(rows, middle)
                    : best_keys(rows, which, middle, ranks, angles(rows.layer), *config_);
  if (alone) drop_weak(rows, middle, best);
  std::vector<kernels::RankedKey> picked(which.size() * config_->n_head * picks);
  for (size_t i = 0; i < picked.size(); ++i) {
    const size_t head = i / picks;
    const bool votes = settings_.heads.has(rows.layer, head % config_->n_head);
    if (votes) picked[i] = best[head * ranks + i % picks];
  }
  return picked;
}

LayerRope ReAttentionPolicy::rope_of(uint32_t layer) const {
  return config_->layer_rope.empty() ? LayerRope::kGlobal : config_->layer_rope[layer];
}

std::span<const float> ReAttentionPolicy::angles(uint32_t layer) const {
  return settings_.angles[static_cast<size_t>(rope_of(layer))];
}

std::vector<kernels::RankedKey> ReAttentionPolicy::best_of_row(const QueryRows& rows,
                                                               KeyRange middle) const {
  constexpr size_t kOnly[] = {0};
  const size_t ranks = settings_.ranks_of(1), heads = config_->n_head;
  const bool known = rows.first() >= together_.first && rows.first() < together_.end;
  if (known) middle.begin = together_.keys.end;
  std::vector<kernels::RankedKey> best(heads * ranks, {-std::numeric_limits<float>::infinity()});
  if (middle.begin < middle.end) {
    best = best_keys(rows, kOnly, middle, ranks, angles(rows.layer), *config_);
  }
  if (!known) return best;
  const auto row = static_cast<size_t>(rows.first() - together_.first);
  std::vector<kernels::RankedKey> both(2 * ranks);
  for (size_t head = 0; head < heads; ++head) {
    const auto own = best.begin() + static_cast<std::ptrdiff_t>(head * ranks);
    const auto others =
        together_.best.begin() + static_cast<std::ptrdiff_t>((row * heads + head) * ranks);
    std::merge(own, own + static_cast<std::ptrdiff_t>(ranks), others,
               others + static_cast<std::ptrdiff_t>(ranks), both.begin(), kernels::ranks_before);
    std::copy_n(both.begin(), ranks, own);
  }
  return best;
}

void ReAttentionPolicy::drop_weak(const QueryRows& rows, KeyRange middle,
                                  std::vector<kernels::RankedKey>& best) {
  const size_t ranks = best.size() / config_->n_head;
  std::vector<float> least(config_->n_head, -std::numeric_limits<float>::infinity());
  if (settings_.least > 0.0f) {
    least = least_scores(rows, {settings_.sink, middle.end}, settings_.least,
                         *settings_.near[static_cast<size_t>(rope_of(rows.layer))], *config_);
  }
  const bool open = is_open(rows);
  uint32_t leading = 0;
  for (size_t head = 0; head < config_->n_head; ++head) {
    const std::span own(&best[head * ranks], ranks);
    const kernels::RankedKey rival = settings_.lead > 0.0f ? own[kLeadRank - 1] : own[0];
    const bool leads = rival.key < 0 || own[0].score - rival.score >= settings_.lead;
    for (kernels::RankedKey& pick : own) {
      if (!(leads || open) || !(pick.score >= least[head])) pick.key = -1;
    }
    if (!leads || !settings_.heads.has(rows.layer, head)) continue;
    ++leading;
    if (settings_.agree <= 0.0f || own[0].key < 0) continue;
    agreement_.add(rows.first(), own[0].key);
    layers_[rows.layer].voted.push_back(own[0].key);
  }
  if (settings_.gate <= 0.0f) return;
  gate_.add(rows.first(), leading);
}

int32_t ReAttentionPolicy::recent_of(const QueryRows& rows, KeyRange middle) const {
  const bool narrow = !is_watched(rows) || looks_far(rows, middle);
  return narrow ? middle.end : std::clamp(rows.end() - settings_.wide, middle.begin, middle.end);
}

bool ReAttentionPolicy::is_watched(const QueryRows& rows) const {
  return settings_.watches() && rows.rows.size() == 1 &&
         (settings_.agree > 0.0f || settings_.votes(rows.layer));
}

bool ReAttentionPolicy::looks_far(const QueryRows& rows, KeyRange middle) const {
  return settings_.agree > 0.0f ? !agreed(rows, middle).empty() : is_open(rows);
}

bool ReAttentionPolicy::is_open(const QueryRows& rows) const {
  if (settings_.gate <= 0.0f) return false;
  return gate_.evidence(rows.first()) >= settings_.gate * static_cast<double>(voters());
}

size_t ReAttentionPolicy::voters() const {
  size_t heads = 0;
  for (uint32_t layer = 0; layer < config_->n_layer; ++layer) {
    const bool asked = config_->window[layer] == 0 && !is_left_alone(layer);
    if (asked) heads += settings_.heads.count(layer);
  }
  return heads;
}

int32_t ReAttentionPolicy::prefill_cell(int32_t position, int32_t prompt_end) const {
  const int32_t cell = Policy::prefill_cell(position, prompt_end);
  if (prompt_end <= settings_.activate) return cell;  // every row reads everything
  const int32_t until_alone = prompt_end - settings_.alone - position;
  return until_alone > 0 ? std::min(cell, until_alone) : 1;
}

void ReAttentionPolicy::truncate(int32_t length) {
  gate_.truncate(length);
  agreement_.truncate(length);
  device_.truncate(length);
  together_ = {};
  for (Layer& layer : layers_) layer = {};
}

std::string ReAttentionPolicy::save_state() const {
  if (!settings_.watches()) return {};
  if (device_.state == nullptr) {
    return settings_.agree > 0.0f ? agreement_.save() : gate_.save();
  }
  // A failure is the device's, and the next pass reports it: no rows are saved.
  return device_.state->save(device_.truncated).value_or(Agreement().save());
}

Status ReAttentionPolicy::restore_state(std::string_view state, int32_t length) {
  device_ = {};
  gate_ = {};
  agreement_ = {};
  if (!settings_.watches() || state.empty()) return Policy::restore_state(state, length);
  const bool restored = settings_.agree > 0.0f ? agreement_.restore(state, length, voters())
                                               : gate_.restore(state, length, voters());
  if (restored) return {};
  return fail(ErrorCode::kCorrupt, "what was saved is no evidence of reattention's heads");
}

void ReAttentionPolicy::leave_alone(uint32_t layer) {
  Policy::leave_alone(layer);
  unbounded_ = unbounded_ && config_->window[layer] > 0;
}

PolicyStats ReAttentionPolicy::stats() const {
  PolicyStats stats;
  const auto add = [&](const char* name, uint64_t sum, uint64_t count) {
    if (count > 0) stats.emplace_back(name, static_cast<double>(sum) / static_cast<double>(count));
  };
  add("reattention_scope", stats_.keys, stats_.rows);
  add("reattention_ranges", stats_.ranges, stats_.rows);
  const auto elsewhere =
      device_.state != nullptr ? device_.state->counts() : WatchOnDevice::Counts{};
  add("reattention_open", stats_.open + elsewhere.open, stats_.scans + elsewhere.rows);
  return stats;
}

uint64_t ReAttentionPolicy::state_bytes() const {
  uint64_t own = 0, voted = 0;
  for (const Layer& layer : layers_) {
    own += layer.own.capacity();
    voted += layer.voted.capacity();
  }
  const uint64_t elsewhere = device_.state != nullptr ? device_.state->bytes() : 0;
  return own * sizeof(Candidate) + voted * sizeof(int32_t) + gate_.bytes() + agreement_.bytes() +
         elsewhere;
}

}  // namespace reprise
