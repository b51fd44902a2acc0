#include "methods/csattention/csattention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "methods/csattention/code_index.h"
#include "methods/csattention/score_table.h"
#include "methods/key_list.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
constexpr int32_t kPaperWindow = 32;
constexpr uint32_t kSamplePages = 32;  // 512 keys fit 16 centroids of two dims
constexpr uint32_t kCodeIterations = 4, kCentroidIterations = 10, kPaperCentroids = 128,
                   kCentroidParts = 8;
constexpr int32_t kWatchTurn = 4;       // tokens from a layer's measurement to the next layer's
constexpr int32_t kFewNewKeys = 1024;   // for which no new index is made
constexpr int32_t kWholePrompt = 1024;  // prompts up to here shape an index with all their tokens
constexpr int32_t kFitStep = 256;       // others with those before a multiple of this
constexpr int32_t kWatchRows = 128;     // decode rows of which drift is measured
constexpr int32_t kFitMargin = 64;      // which lies so many tokens before their end

// Half of n, and so on, until so many bytes fit. bytes: of a key and KV head with n.
template <class Bytes>
uint32_t fitting(uint32_t n, uint32_t least, float limit, Bytes bytes) {
  while (n > least && static_cast<float>(bytes(n)) > limit) n /= 2;
  return std::max(n, least);
}

uint32_t either(uint32_t given, uint32_t own) { return given > 0 ? given : own; }

std::unique_ptr<KeyIndex> make_index(const CsAttentionOptions& options, const ModelConfig& config) {
  const int32_t unit = options.unit == "page" ? kTokens : 1;
  const float limit = options.index * 4.0f * static_cast<float>(config.head_dim);  // bytes
  if (options.mode == "codes") {
    const uint32_t iterations = either(options.iterations, kCodeIterations);
    const uint32_t per_byte = options.bits <= 4 ? 2 : 1;
    const uint32_t parts =
        fitting(either(options.parts, std::max(1u, config.head_dim / 2)), 1, limit,
                [&](uint32_t n) { return (n + per_byte - 1) / per_byte; });
    return std::make_unique<CodeIndex>(
        KeyCodesOptions{parts, options.bits, iterations, options.seed, options.skip, kSamplePages},
        config, unit);
  }
  if (options.mode == "table") {
    const uint32_t parts = either(options.parts, kCentroidParts);
    const uint32_t iterations = either(options.iterations, kCentroidIterations);
    const uint32_t centroids = fitting(either(options.centroids, std::max(2u, config.head_dim / 4)),
                                       2, limit, [&](uint32_t n) { return parts * n / 2; });
    return std::make_unique<ScoreTable>(
        ScoreTableOptions{parts, centroids, iterations, options.seed}, config, unit);
  }
  return std::make_unique<CentroidLists>(lists_options(options), config);
}

// A long answer gets an index of its own, shaped by the queries before it; one layer at a time,
// each as if the answer were a page shorter than for the layer before.
int32_t decoded_end(const QueryRows& rows) {
  return rows.end() - kTokens * static_cast<int32_t>(rows.layer);
}

// End of the tokens of a prompt that shape its index: what follows a shared beginning has no part.
int32_t fit_end(int32_t prompt_end) {
  if (prompt_end <= kWholePrompt) return prompt_end;
  return (prompt_end - kFitMargin) / kFitStep * kFitStep;
}

}  // namespace

bool has_lists(const CsAttentionOptions& options) {
  return options.mode == "lists" || options.mode == "paper";
}

CentroidListsOptions lists_options(const CsAttentionOptions& options) {
  const bool repairs = options.mode == "lists";
  return {.parts = either(options.parts, kCentroidParts),
          .centroids = either(options.centroids, kPaperCentroids),
          .share = options.list,
          .backoff = options.backoff,
          .iterations = either(options.iterations, kCentroidIterations),
          .seed = options.seed,
          .norms = repairs && options.weights == "norm",
          .absent_mean = repairs && options.absent == "mean",
          .centred = repairs && options.centred};
}

Result<std::unique_ptr<Policy>> CsAttentionPolicy::create(const CsAttentionOptions& options,
                                                          const ModelConfig& config) {
  if (has_lists(options)) {
    const CentroidListsOptions lists = lists_options(options);
    const double share = CentroidLists::key_bytes(lists, config) / (4.0 * config.head_dim);
    if (share > std::max(1.0, double{options.index})) {
      return fail(ErrorCode::kInvalidArgument,
                  "policy csattention: the lists of mode={} take {:.2f} times the bytes of the KV; "
                  "allow that with index={:.0f}, or give it fewer centroids= or a shorter list=",
                  options.mode, share, std::ceil(share));
    }
  }
  return std::make_unique<CsAttentionPolicy>(options, config);
}

CsAttentionPolicy::CsAttentionPolicy(const CsAttentionOptions& options, const ModelConfig& config)
    : config_(&config),
      options_(options),
      budget_(static_cast<int32_t>(options.budget)),
      period_(static_cast<int32_t>(options.period)),
      observe_(options.observe == 0 ? std::numeric_limits<int32_t>::max()
                                    : static_cast<int32_t>(options.observe)),
      activate_(static_cast<int32_t>(options.activate)),
      keep_(options.keep),
      index_(make_index(options, config)),
      searches_(config.n_layer),
      full_(std::make_shared<FullPolicy>(FullOptions(), config)) {
  full_->set_spec("full");
  const bool paper = options.mode == "paper";
  const int32_t window = paper ? kPaperWindow : static_cast<int32_t>(options.window);
  // What is left of the smallest budget is a page to choose, even if one is not yet in the index.
  const int32_t unit = index_->unit();
  const int32_t sink = std::min(static_cast<int32_t>(options.sink), budget_ / 8);
  sink_ = paper ? 0 : (sink + unit - 1) / unit * unit;
  window_ = std::min(window, budget_ / 4);
  period_ = std::min(period_, budget_ / 32);
}

int32_t CsAttentionPolicy::budget_at(int32_t end) const {
  return std::max(budget_, static_cast<int32_t>(std::ceil(keep_ * static_cast<float>(end))));
}

int32_t CsAttentionPolicy::recent_end(uint32_t layer, int32_t end) const {
  // Whole pages enter the index, so that decode steps seldom have to, and of few layers at a time.
  const int32_t late = budget_at(end) < kStaggered ? 0 : static_cast<int32_t>(layer) % kTokens;
  return (end - window_ - late) / kTokens * kTokens;
}

int32_t CsAttentionPolicy::built_end(uint32_t layer) const {
  if (device_.state == nullptr) return index_->built_end(layer);
  const bool gone = device_.state->needs_until(layer) > device_.truncated;
  return gone ? 0 : device_.state->built_end(layer);
}

bool CsAttentionPolicy::has_index() const {
  uint32_t layer = 0;
  while (layer < config_->n_layer && built_end(layer) == 0) ++layer;
  return layer < config_->n_layer;
}

bool CsAttentionPolicy::wants_index(uint32_t layer, int32_t end) const {
  const int32_t built = built_end(layer);
  return built == 0 || end - built > std::max(kFewNewKeys, built / 4);
}

int32_t CsAttentionPolicy::observed_prompt_rows(int32_t prompt_end, int32_t kept) const {
  for (uint32_t layer = 0; layer < config_->n_layer; ++layer) {
    if (built_end(layer) <= kept && !wants_index(layer, prompt_end)) return 0;
  }
  return prompt_end - observed(prompt_end).first;
}

QueryWindow CsAttentionPolicy::observed(int32_t prompt_end) const {
  const int32_t fit = fit_end(prompt_end);
  return {fit - std::min(observe_, fit), fit};
}

int32_t CsAttentionPolicy::decode_rows_observed() const { return std::min(observe_, kFewNewKeys); }

DeviceStep CsAttentionPolicy::begin_device_step(int32_t position) {
  const int32_t end = position + 1, last = std::max(budget_at(end), activate_on_device());
  if (has_lists(options_)) {  // which prompts alone make there
    return {has_index() && end > last ? static_cast<const Policy*>(this) : full_.get(), false};
  }
  // A sequence that grows to where a search pays shapes its index by the rows before that.
  const bool acts = end > (has_index() ? last : last - decode_rows_observed());
  return {acts ? static_cast<const Policy*>(this) : full_.get(), false};
}

int32_t CsAttentionPolicy::shared_length(int32_t prompt_end) const {
  if (has_lists(options_)) return 0;  // they hold later keys, and cannot be cut back
  const int32_t fit = fit_end(prompt_end);
  for (uint32_t layer = 0; layer < config_->n_layer; ++layer) {
    const int32_t built = built_end(layer);
    if (built > 0 && built != fit) return 0;  // of an earlier prompt
  }
  return fit;
}

bool CsAttentionPolicy::builds(const QueryRows& rows) const {
  if (rows.end() <= budget_at(rows.end())) return false;
  if (rows.phase == kernels::Phase::kDecode) return wants_index(rows.layer, decoded_end(rows));
  return rows.end() >= rows.prompt_end && wants_index(rows.layer, rows.prompt_end);
}

void CsAttentionPolicy::learn(const QueryRows& rows) {
  const bool decode = rows.phase == kernels::Phase::kDecode;
  const int32_t end = decode ? decoded_end(rows) + decode_rows_observed() : rows.prompt_end;
  if (!wants_index(rows.layer, end)) return watch(rows);
  const QueryWindow window =
      decode ? QueryWindow{rows.first(), rows.end()} : observed(rows.prompt_end);
  index_->take_queries(rows, window);
  if (builds(rows)) build(rows, window.end);
}

void CsAttentionPolicy::build(const QueryRows& rows, int32_t keys_end) {
  // An index of some layers would pass for one of all.
  if (!rows.report({"index", rows.layer, config_->n_layer, "layers"})) return index_->truncate(0);
  index_->build(rows, {sink_, keys_end});
}

bool CsAttentionPolicy::watches(const QueryRows& rows) const {
  return options_.drift > 0.0f && options_.mode == "codes" &&
         rows.phase == kernels::Phase::kDecode && !reads_all(rows.layer, rows.end());
}

// Layers take turns.
bool CsAttentionPolicy::ends_watch(const QueryRows& rows) const {
  const int32_t turn = rows.end() + static_cast<int32_t>(rows.layer) * kWatchTurn;
  return turn % kWatchRows == 0 && watches(rows);
}

void CsAttentionPolicy::watch(const QueryRows& rows) {
  if (!watches(rows)) return;
  index_->take_queries(rows, {rows.first(), rows.end()});
  if (!ends_watch(rows)) return;
  const double drift = index_->drift(rows, {sink_, index_->held_end(rows.layer)});
  ++drift_.measured;
  drift_.sum += drift;
  drift_.most = std::max(drift_.most, drift);
  if (drift <= options_.drift) return index_->forget_queries(rows.layer);
  ++drift_.rebuilt;
  build(rows, rows.end());
}

int32_t CsAttentionPolicy::reads_from(const QueryRows& rows) const {
  if (builds(rows) || ends_watch(rows)) return 0;
  if (reads_all(rows.layer, rows.end())) return rows.end();
  return std::min(index_->held_end(rows.layer), recent_end(rows.layer, rows.end()));
}

int32_t CsAttentionPolicy::reads_before(const QueryRows& rows) const {
  return rows.phase == kernels::Phase::kDecode ? sink_ : 0;
}

bool CsAttentionPolicy::predict(const QueryRows& rows, Selection& selection) {
  const int32_t end = rows.end();
  if (builds(rows) || ends_watch(rows) || reads_all(rows.layer, end)) return true;
  const Search& search = searches_[rows.layer];
  if (is_turn_of(search, rows)) {
    list(search.picks, {search.recent, end}, selection);
    return true;
  }
  const int32_t held = index_->held_end(rows.layer) / kTokens * kTokens;
  const int32_t recent = std::min(held, recent_end(rows.layer, end));
  KeyPicks picks;
  if (rows.q_rotated == nullptr || recent <= sink_) return false;
  if (!index_->guess(rows, {sink_, recent}, wanted(rows), picks)) return false;
  list(picks, {recent, end}, selection);
  return true;
}

void CsAttentionPolicy::extend(const QueryRows& rows, int32_t end) {
  const auto start = Clock::now();
  index_->extend(rows, end);
  const std::chrono::duration<double, std::milli> took = Clock::now() - start;
  if (rows.phase == kernels::Phase::kPrefill) {
    times_.build_ms += took.count();
    return;
  }
  if (times_.update_us.empty() || times_.last_end != rows.end()) times_.update_us.push_back(0.0f);
  times_.last_end = rows.end();
  times_.update_us.back() += static_cast<float>(1e3 * took.count());
}

void CsAttentionPolicy::select(const QueryRows& rows, Selection& selection) {
  const int32_t end = rows.end();
  const bool prefill = rows.phase == kernels::Phase::kPrefill;
  const auto start = Clock::now();
  learn(rows);
  end_ = end;
  times_.build_ms += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  if (reads_all(rows.layer, end)) return;
  const int32_t recent = recent_end(rows.layer, end);
  extend(rows, recent);
  if (prefill) return;
  Search& search = searches_[rows.layer];
  if (!still_holds(search, rows)) {
    selection.index_bytes_read = index_->find(rows, {sink_, recent}, wanted(rows), search.picks);
    remember(rows, recent, search);
  }
  list(search.picks, {search.recent, end}, selection);
}

bool CsAttentionPolicy::reads_all(uint32_t layer, int32_t end) const {
  return end <= std::max(budget_at(end), activate_) || index_->built_end(layer) == 0;
}

size_t CsAttentionPolicy::wanted(const QueryRows& rows) const {
  const int32_t end = rows.end(), recent = recent_end(rows.layer, end);
  const int32_t keys = budget_at(end) - sink_ - (end - recent) - (period_ - 1);
  return static_cast<size_t>(keys / index_->unit());
}

void CsAttentionPolicy::list(const KeyPicks& picks, KeyRange recent, Selection& selection) const {
  selection.all = false;
  SelectionPart& part = selection.parts.emplace_back();
  part.split = index_->split();
  for (const auto& of_head : picks) {
    add_keys(part, sink_, of_head, sink_, recent, index_->unit());
  }
}

// Layers take turns, so that steps take equally long.
bool CsAttentionPolicy::is_turn_of(const Search& search, const QueryRows& rows) const {
  const auto turn = [&](int32_t end) { return (end + static_cast<int32_t>(rows.layer)) / period_; };
  return search.end > 0 && rows.end() >= search.end && turn(rows.end()) == turn(search.end);
}

bool CsAttentionPolicy::still_holds(const Search& search, const QueryRows& rows) const {
  if (!is_turn_of(search, rows)) return false;
  if (options_.cosine <= -1.0f) return true;
  const size_t dim = config_->head_dim;
  for (size_t head = 0; head < config_->n_head; ++head) {
    const float *now = rows.q_rotated + head * dim, *then = &search.q[head * dim];
    float product = 0.0f, now_norm = 0.0f, then_norm = 0.0f;
    for (size_t d = 0; d < dim; ++d) {
      product += now[d] * then[d];
      now_norm += now[d] * now[d];
      then_norm += then[d] * then[d];
    }
    if (!(product >= options_.cosine * std::sqrt(now_norm * then_norm))) return false;
  }
  return true;
}

void CsAttentionPolicy::remember(const QueryRows& rows, int32_t recent, Search& search) const {
  search.recent = recent;
  search.end = period_ > 1 ? rows.end() : 0;
  if (period_ == 1 || options_.cosine <= -1.0f) return;
  search.q.assign(rows.q_rotated, rows.q_rotated + size_t{config_->n_head} * config_->head_dim);
}

PolicyStats CsAttentionPolicy::stats() const {
  if (device_.state != nullptr) {
    return {{"index_mb", static_cast<double>(device_.state->bytes()) * 1e-6},
            {"fallback", static_cast<double>(device_.fallbacks)}};
  }
  PolicyStats stats = index_->stats();
  if (end_ == 0) return stats;
  const double kv_bytes = 4.0 * end_ * config_->n_layer * config_->n_kv_head * config_->head_dim;
  stats.emplace_back("index_share", static_cast<double>(index_->bytes()) / kv_bytes);
  stats.emplace_back("build_ms", times_.build_ms);
  if (drift_.measured > 0) {
    stats.emplace_back("drift", drift_.sum / static_cast<double>(drift_.measured));
    stats.emplace_back("drift_most", drift_.most);
    stats.emplace_back("drift_rebuilds", static_cast<double>(drift_.rebuilt));
  }
  std::vector<float> sorted = times_.update_us;
  if (sorted.empty()) return stats;
  std::ranges::sort(sorted);
  stats.emplace_back("update_us_p50", sorted[sorted.size() / 2]);
  stats.emplace_back("update_us_p99", sorted[sorted.size() * 99 / 100]);
  return stats;
}

void CsAttentionPolicy::clear_stats() {
  index_->clear_stats();
  times_ = {};
  drift_ = {};
  device_.fallbacks = 0;
}

void CsAttentionPolicy::truncate(int32_t length) {
  index_->truncate(length);
  device_.truncate(length);
  for (Search& search : searches_) {
    if (search.end > length) search.end = 0;
  }
}

std::string CsAttentionPolicy::save_state() const {
  IndexOwner saved(index_);
  if (device_.state != nullptr) {
    // A failure is the device's, and the next pass reports it: no index is saved.
    KeyCodes* const codes = saved->key_codes();  // lists are not fetched
    const bool fetched = codes != nullptr && device_.state->fetch(*codes).has_value();
    saved->truncate(fetched ? device_.truncated : 0);
  }
  StateWriter out;
  saved->save(out);
  return out.take();
}

Status CsAttentionPolicy::restore_state(std::string_view state, int32_t length) {
  truncate(0);
  device_ = {};
  StateReader in(state);
  index_->load(in, length);
  if (in.ended()) return {};
  truncate(0);
  return fail(ErrorCode::kCorrupt, "what was saved is no index of these keys");
}

uint64_t CsAttentionPolicy::state_bytes() const {
  uint64_t bytes = index_->bytes();
  if (device_.state != nullptr) bytes += device_.state->bytes();
  for (const Search& search : searches_) {
    bytes += search.q.capacity() * sizeof(float);
    for (const auto& picks : search.picks) bytes += picks.capacity() * sizeof(int32_t);
  }
  return bytes;
}

}  // namespace reprise
