#include "methods/attention_predictor/attention_predictor.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <optional>

#include "base/try.h"
#include "methods/attention_predictor/net_file.h"
#include "methods/key_list.h"
#include "methods/top_k.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTokens = static_cast<int32_t>(kPageTokens);
constexpr size_t kParallelFrom = 1 << 15;  // scores
constexpr uint32_t kLeastBudget = AttentionPredictorOptions::kLeastBudget;
constexpr uint32_t kMostBudget = AttentionPredictorOptions::kMostBudget;
constexpr int32_t kFewestRows = 8;  // of a longer history; with fewer every key is read

/// "3:512" as a layer and its tokens.
std::optional<std::pair<uint32_t, uint32_t>> parse_layer_budget(std::string_view text) {
  std::pair<uint32_t, uint32_t> budget;
  const char* end = text.data() + text.size();
  const auto layer = std::from_chars(text.data(), end, budget.first);
  if (layer.ec != std::errc() || layer.ptr == end || *layer.ptr != ':') return {};
  const auto tokens = std::from_chars(layer.ptr + 1, end, budget.second);
  if (tokens.ec != std::errc() || tokens.ptr != end) return {};
  return budget;
}

BlockPool pool_of(const AttentionPredictorOptions& options) {
  return options.pool == "max" ? BlockPool::kMax : BlockPool::kSum;
}

AttentionPredictorOptions settled(AttentionPredictorOptions options) {
  if (options.mode != "paper") return options;
  options.calibrate = "dense";
  options.period = 5;
  options.sink = options.window = options.history = 64;
  options.pool = "max";
  return options;
}

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace

AttentionPredictorPolicy::AttentionPredictorPolicy(const AttentionPredictorOptions& options,
                                                   const ModelConfig& config,
                                                   const std::shared_ptr<const ForecastNet>& net)
    : config_(&config),
      options_(settled(options)),
      budgets_(config.n_layer, {options_.budget, options_.sink, options_.window}),
      period_(static_cast<int32_t>(options_.period)),
      history_(static_cast<int32_t>(options_.history)),
      dense_calibration_(options_.calibrate == "dense"),
      net_(net),
      scores_(pool_of(options_), config),
      layers_(config.n_layer),
      blocks_(config.n_kv_head) {
  if (net) history_ = std::max(history_, static_cast<int32_t>(net->rows));
  for (Layer& layer : layers_) {
    if (net)
      layer.predictor = std::make_unique<NetworkPredictor>(config.n_kv_head, net, options_.factor,
                                                           options_.period);
    else
      layer.predictor =
          std::make_unique<AveragePredictor>(config.n_kv_head, options_.factor, options_.period);
  }
}

Result<std::unique_ptr<Policy>> AttentionPredictorPolicy::create(
    const AttentionPredictorOptions& given, const ModelConfig& config) {
  const AttentionPredictorOptions options = settled(given);
  std::shared_ptr<const ForecastNet> net;
  if (options.file != "none") {
    REPRISE_TRY(ForecastNet loaded, load_forecast_net(options.file, config, pool_of(options)));
    net = std::make_shared<const ForecastNet>(loaded);
  }
  if (options.mode == "paper" && (net == nullptr || !net->published)) {
    return fail(ErrorCode::kInvalidArgument,
                "mode=paper forecasts with the paper's network: train one with `reprise train "
                "predictor --form published` and name it with file=");
  }
  auto policy = std::make_unique<AttentionPredictorPolicy>(options, config, std::move(net));
  std::string_view rest = options.layers == "none" ? "" : std::string_view(options.layers);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('/'));
    const auto budget = parse_layer_budget(item);
    if (!budget || budget->first >= config.n_layer || budget->second < kLeastBudget ||
        budget->second > kMostBudget) {
      return fail(ErrorCode::kInvalidArgument,
                  "layers: \"{}\" is not LAYER:TOKENS with a layer below {} and {} to {} tokens",
                  item, config.n_layer, kLeastBudget, kMostBudget);
    }
    policy->budgets_[budget->first] = {budget->second, options.sink, options.window};
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
  }
  return policy;
}

void AttentionPredictorPolicy::push(uint32_t index, const ScoreRow& row, int32_t position) {
  Layer& layer = layers_[index];
  layer.predictor->push(row);
  layer.rows = std::min(layer.rows + 1, kFewestRows);
  layer.end = position + 1;
}

void AttentionPredictorPolicy::read_prompt(const QueryRows& rows) {
  const int32_t first = std::max(rows.first(), rows.prompt_end - history_);
  std::array<ScoreRow, BlockScores::kRows> scores;
  for (int32_t at = first; at < rows.end();) {
    const auto some =
        std::span(scores).first(std::min(scores.size(), static_cast<size_t>(rows.end() - at)));
    scores_.of_all(rows, at, some);
    for (const ScoreRow& row : some) push(rows.layer, row, at++);
  }
}

void AttentionPredictorPolicy::select(const QueryRows& rows, Selection& selection) {
  if (rows.phase == kernels::Phase::kPrefill) return read_prompt(rows);
  const auto start = Clock::now();
  sums_.layer_steps += 1.0;
  shares_.offsets.clear();  // keeps its memory
  shares_.largest = scores_.pool() == BlockPool::kMax;
  selection.shares = &shares_;
  if (reads_all(rows)) {
    sums_.calibrated += 1.0;
    return;
  }
  const int32_t end = rows.end();
  const bool calibrates = this->calibrates(rows.layer, end);
  if (calibrates) {
    selection.shares = nullptr;
    selection.index_bytes_read = scores_.of_all(rows, end - 1, {&row_, 1});
    push(rows.layer, row_, end - 1);
    sums_.calibrated += 1.0;
    sums_.calibrate_us += us_since(start);
  }
  const auto chosen = Clock::now();
  choose(rows, calibrates, selection);
  sums_.forecast_us += us_since(chosen);
}

bool AttentionPredictorPolicy::reads_all(const QueryRows& rows) const {
  const int32_t end = rows.end();
  const BlockBudget& budget = budgets_[rows.layer];
  const BlockBudget::Choice choice = budget.choice(end);
  return end <= budget.budget || choice.count >= choice.candidates() ||
         layers_[rows.layer].rows < std::min(kFewestRows, history_) ||
         (calibrates(rows.layer, end) && dense_calibration_);
}

int32_t AttentionPredictorPolicy::reads_from(const QueryRows& rows) const {
  const bool scores = rows.phase == kernels::Phase::kPrefill
                          ? rows.end() > rows.prompt_end - history_
                          : calibrates(rows.layer, rows.end()) && !reads_all(rows);
  return scores ? 0 : rows.end();
}

bool AttentionPredictorPolicy::predict(const QueryRows& rows, Selection& selection) {
  if (!reads_all(rows) && !calibrates(rows.layer, rows.end())) choose(rows, false, selection);
  return true;
}

void AttentionPredictorPolicy::choose(const QueryRows& rows, bool scored, Selection& selection) {
  const BlockBudget& budget = budgets_[rows.layer];
  const BlockBudget::Choice choice = budget.choice(rows.end());
  find_blocks(rows, choice, scored);
  selection.all = false;
  SelectionPart& part = selection.parts.emplace_back();
  part.split = HeadSplit::kPerKvHead;
  part.ranges.reserve(blocks_.size() * (choice.count + 2));
  for (const auto& blocks : blocks_) {
    add_keys(part, budget.sink, blocks, budget.sink,
             {static_cast<int32_t>(choice.last) * kTokens, rows.end()}, kTokens);
  }
}

void AttentionPredictorPolicy::find_blocks(const QueryRows& rows, const BlockBudget::Choice& choice,
                                           bool scored) {
  Predictor& predictor = *layers_[rows.layer].predictor;
  const auto choose_of = [&](size_t head) {
    if (scored) {
      top_k(row_.scores_of(head).subspan(choice.first, choice.candidates()), choice.count,
            blocks_[head]);
    } else {
      predictor.best(head, choice.first, choice.last, choice.count, blocks_[head]);
    }
  };
  // Waking threads takes longer than a short list does.
  if (!net_ && !(scored && blocks_.size() * choice.candidates() >= kParallelFrom)) {
    for (size_t head = 0; head < blocks_.size(); ++head) choose_of(head);
  } else {
    rows.pool->run(blocks_.size(), [&](size_t head, int) { choose_of(head); });
  }
}

void AttentionPredictorPolicy::observe(const QueryRows& rows, const AttentionResult&) {
  if (shares_.lists() == 0) return;
  const auto start = Clock::now();
  scores_.of_read(rows, shares_, row_);
  push(rows.layer, row_, rows.first());
  shares_.offsets.clear();  // keeps its memory
  layers_[(rows.layer + 1) % layers_.size()].predictor->fetch();
  sums_.forecast_us += us_since(start) + 1e3 * shares_.ms;
}

void AttentionPredictorPolicy::truncate(int32_t length) {
  for (Layer& layer : layers_) {
    if (layer.end <= length) continue;
    layer.predictor->clear();
    layer.rows = layer.end = 0;
  }
}

PolicyStats AttentionPredictorPolicy::stats() const {
  if (sums_.layer_steps == 0.0) return {};
  const double layers = static_cast<double>(config_->n_layer);
  return {{"forecast_us", sums_.forecast_us / sums_.layer_steps * layers},
          {"calibrate_us", sums_.calibrate_us / sums_.layer_steps * layers},
          {"calibrated", sums_.calibrated / sums_.layer_steps}};
}

uint64_t AttentionPredictorPolicy::state_bytes() const {
  uint64_t bytes = device_bytes_ * config_->n_kv_head;
  for (const Layer& layer : layers_) bytes += layer.predictor->bytes();
  return bytes;
}

std::string AttentionPredictorPolicy::save_state() const {
  StateWriter out;
  for (const Layer& layer : layers_) {
    out.value(layer.rows);
    out.value(layer.end);
    layer.predictor->save(out);
  }
  return out.take();
}

Status AttentionPredictorPolicy::restore_state(std::string_view state, int32_t length) {
  StateReader in(state);
  const auto max_blocks = (static_cast<size_t>(length) + kPageTokens - 1) / kPageTokens;
  for (Layer& layer : layers_) {
    layer.rows = in.value<int32_t>();
    layer.end = in.value<int32_t>();
    in.require(layer.rows >= 0 && layer.rows <= kFewestRows && layer.end >= 0 &&
               layer.end <= length);
    layer.predictor->load(in, max_blocks);
  }
  if (in.ended()) return {};
  for (Layer& layer : layers_) layer.end = length + 1;
  truncate(length);
  return fail(ErrorCode::kCorrupt, "what was saved is no history of attention to these keys");
}

}  // namespace reprise
