#include "methods/cuda/reattention.h"

#include <algorithm>

#include "base/try.h"
#include "kernels/cuda/least_scores.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "reattention";
constexpr uint32_t kTokens = kernels::cuda::kPageTokens;

Status check(const ReAttentionPolicy::Settings& s) {
  if (s.fill && s.spans * static_cast<size_t>(s.span) > kMaxFilled) {
    return fail(ErrorCode::kUnsupported,
                "policy reattention: {} spans of {} tokens are more to fill than the {} of "
                "--device cuda; choose fewer (spans=), or leave fill out",
                s.spans, s.span, kMaxFilled);
  }
  if (s.most_spans() > kMaxSpans) {
    return fail(ErrorCode::kUnsupported,
                "policy reattention: {} spans are more than the {} of --device cuda; choose longer "
                "ones (span=), or fewer (spans=)",
                s.most_spans(), kMaxSpans);
  }
  if (std::max(s.picks, s.ranks_of(1)) <= kMaxTopKeys) return {};
  return fail(ErrorCode::kUnsupported,
              "policy reattention: {} picks and {} decode-picks are more than the {} of --device "
              "cuda; choose fewer",
              s.picks, s.decode_picks, kMaxTopKeys);
}

}  // namespace

Result<std::unique_ptr<DevicePolicy>> DeviceReAttention::create(const ReAttentionPolicy& policy,
                                                                const ModelConfig& config) {
  REPRISE_CHECK(check(policy.settings()));
  return std::unique_ptr<DevicePolicy>(new DeviceReAttention(policy, config));
}

DeviceReAttention::DeviceReAttention(const ReAttentionPolicy& policy, const ModelConfig& config)
    : settings_(policy.settings()),
      layer_rope_(config.layer_rope),
      n_layer_(config.n_layer),
      n_head_(config.n_head),
      n_kv_head_(config.n_kv_head),
      head_dim_(config.head_dim),
      query_scale_(config.attention_scale / kQueryUnit),
      attention_scale_(config.attention_scale),
      middle_{settings_.sink, settings_.local, settings_.activate},
      widest_{settings_.sink, settings_.wide, settings_.activate},
      span_tokens_(span_tokens(widest_, most_spans(), static_cast<uint32_t>(settings_.span))) {
  const auto voters = static_cast<double>(policy.voters());
  gate_open_ = static_cast<float>(settings_.gate * voters * Gate::kPast);
  agree_least_ = settings_.agree * voters;
  if (settings_.asks_for_interval) interval_ = settings_.interval;
}

uint32_t DeviceReAttention::most_spans() const {
  return static_cast<uint32_t>(settings_.most_spans());
}

Status DeviceReAttention::Votes::reserve(uint32_t batch, uint32_t most) {
  slots = vote_slots(most);
  for (auto* buffer : {&keys, &votes, &best, &used}) {
    REPRISE_CHECK(buffer->reserve(size_t{batch} * slots, kWhat));
  }
  return count.reserve(batch, kWhat);
}

VoteTables DeviceReAttention::Votes::tables() const {
  return {slots, keys.data(), votes.data(), best.data(), used.data(), count.data()};
}

uint32_t DeviceReAttention::chunk_voters() const {
  return (static_cast<uint32_t>(settings_.chunk) + stride() - 1) / stride();
}

Status DeviceReAttention::reserve(const DeviceRoom& room) {
  const auto picks = static_cast<uint32_t>(settings_.picks),
             decode_picks = static_cast<uint32_t>(settings_.decode_picks),
             ranks = static_cast<uint32_t>(settings_.ranks_of(1));
  const uint32_t voters = chunk_voters(), rows = room.sequences;
  uint32_t turns = 0;
  turns_.clear();
  for (uint32_t layer = 0; layer < n_layer_; ++layer) {
    turns_.push_back(turns);
    if (settings_.votes(layer) && !leaves_alone(layer)) ++turns;
  }
  gate_rules_ = {turns, static_cast<float>(Gate::kFade), Gate::kRows};
  WatchShape watch = {settings_.gate > 0.0f, settings_.agree > 0.0f, gate_rules_, {}};
  if (interval_ > 1) watch.kept = {n_layer_, n_head_ * decode_picks, watch.agreement ? n_head_ : 0};
  REPRISE_CHECK(watch_.reserve(rows, watch));
  list_capacity_ = span_list_capacity(widest_, most_spans(), static_cast<uint32_t>(settings_.span),
                                      settings_.fill, room.capacity);
  for (size_t i = 0; i < settings_.angles.size(); ++i) {
    REPRISE_CHECK(upload(std::span<const float>(settings_.angles[i]), angles_[i], kWhat));
  }
  REPRISE_CHECK(
      workspace_.reserve(std::max(top_keys_workspace(rows, 1, n_head_, n_kv_head_, ranks),
                                  top_keys_workspace(1, voters, n_head_, n_kv_head_, picks)),
                         kWhat));
  REPRISE_CHECK(floors_.reserve(size_t{std::max(rows, voters)} * n_head_, kWhat));
  REPRISE_CHECK(least_.reserve(size_t{rows} * n_head_, kWhat));
  REPRISE_CHECK(upload(settings_.heads.marks(), voting_, kWhat));
  REPRISE_CHECK(votes_.reserve(rows, n_head_ * decode_picks));
  REPRISE_CHECK(prompt_votes_.reserve(1, std::max(voters * picks, decode_picks) * n_head_));
  REPRISE_CHECK(keys_.reserve(rows, kWhat));
  REPRISE_CHECK(scanning_.reserve(rows, kWhat));
  REPRISE_CHECK(leaders_.reserve(size_t{rows} * n_head_, kWhat));
  REPRISE_CHECK(sent_prompt_ends_.reserve(rows, kWhat));
  prompt_ends_.clear();  // they are sent anew
  REPRISE_CHECK(list_pages_.reserve(size_t{rows} * list_capacity_, kWhat));
  REPRISE_CHECK(list_slots_.reserve(size_t{rows} * list_capacity_, kWhat));
  REPRISE_CHECK(list_angles_.reserve(size_t{rows} * list_capacity_, kWhat));
  REPRISE_CHECK(list_keys_.reserve(rows, kWhat));
  REPRISE_CHECK(tokens_.reserve(span_tokens_, kWhat));
  REPRISE_CHECK(prefill_.reserve(1, kWhat));
  const size_t width = size_t{n_head_} * head_dim_;
  REPRISE_CHECK(q_exact_.reserve(rows * width, kWhat));
  return q_.reserve(static_cast<size_t>(settings_.chunk) * width, kWhat);
}

uint32_t DeviceReAttention::most_rotated_keys() const {
  const auto all = static_cast<uint32_t>(std::max(widest_.activate, widest_.sink + widest_.local));
  return std::max(span_tokens_, all);
}

Status DeviceReAttention::find_least(TopKeysArgs& scan, const PositionAngles& angles,
                                     cudaStream_t stream) const {
  if (settings_.least <= 0.0f || scan.rows > 1) return {};
  LeastScoresArgs args;
  args.kv = scan.kv;
  args.pages = scan.pages;
  args.positions = scan.positions;
  args.batch = scan.batch;
  args.capacity = scan.capacity;
  args.n_head = scan.n_head;
  args.middle = scan.middle;
  args.q = scan.q;
  args.angles = angles;
  args.scale = attention_scale_;
  args.share = settings_.least;
  args.least = least_.data();
  REPRISE_CUDA(least_scores(args, stream), "weighing near keys");
  scan.least = least_.data();
  return {};
}

Status DeviceReAttention::begin_row(uint32_t layer, uint32_t step, TopKeysArgs& scan,
                                    KeySpansArgs& spans, cudaStream_t stream) const {
  if (watch_.shape().gate) {
    scan.evidence = {watch_.gates(step), turns_[layer], gate_open_};
    if (turns_[layer] == 0) {
      REPRISE_CUDA(
          begin_evidence(scan.evidence.states, scan.positions, scan.batch, gate_rules_, stream),
          kWhat);
    }
  }
  if (watch_.shape().agreement) scan.leaders = leaders_.data();
  if (watch_.shape().kept.layers == 0) return {};
  spans.kept = {
      watch_.kept(step), watch_.shape().kept, layer, interval_, sent_prompt_ends_.device() + step,
      scanning_.data(),  leaders_.data()};
  REPRISE_CUDA(begin_scans(spans.kept, scan.positions, scan.batch, scan.middle, scan.votes, stream),
               kWhat);
  scan.positions = scanning_.data();
  return {};
}

Status DeviceReAttention::agree(uint32_t step, const TopKeysArgs& scan, KeySpansArgs& spans,
                                cudaStream_t stream) const {
  if (scan.rows > 1 || !watch_.shape().agreement) return {};
  AgreementArgs args;
  args.states = watch_.agreements(step);
  args.positions = spans.positions;
  args.batch = scan.batch;
  args.middle = scan.middle;
  args.leaders = scan.leaders;
  args.n_head = n_head_;
  args.rules = agreement_rules(agree_least_);
  spans.agreement = args.states;
  REPRISE_CUDA(find_agreement(args, stream), "finding what heads agree on");
  return {};
}

Status DeviceReAttention::choose(uint32_t layer, uint32_t step, TopKeysArgs scan,
                                 KeySpansArgs spans, PackedQueriesArgs queries,
                                 cudaStream_t stream) const {
  const auto kind = layer_rope_.empty() ? LayerRope::kGlobal : layer_rope_[layer];
  const auto& turn = angles_[static_cast<size_t>(kind)];
  scan.n_head = n_head_;
  scan.angles = turn.data();
  scan.pairs = static_cast<uint32_t>(turn.size() / 2);
  scan.floors = floors_.data();
  scan.workspace = workspace_.data();
  spans.positions = scan.positions;
  if (scan.k > 0) {
    scan.votes_each = static_cast<uint32_t>(settings_.picks_of(scan.rows));
    if (scan.rows == 1 && settings_.lead > 0.0f) {
      scan.lead = settings_.lead;
      scan.lead_rank = ReAttentionPolicy::kLeadRank;
    }
    static_assert(kernels::cuda::kVoteParts == reprise::kVoteParts);
    if (settings_.soft) scan.soft = attention_scale_;
    if (scan.rows == 1) REPRISE_CHECK(begin_row(layer, step, scan, spans, stream));
    if (!settings_.heads.all()) scan.voting = voting_.data() + size_t{layer} * n_head_;
    REPRISE_CHECK(find_least(scan, queries.angles, stream));
    REPRISE_CUDA(top_keys(scan, stream), "scanning keys");
  }
  REPRISE_CHECK(agree(step, scan, spans, stream));
  spans.middle = scan.middle;
  spans.evidence = scan.evidence;
  spans.wide = settings_.wide;
  spans.votes = scan.votes;
  spans.batch = scan.batch;
  spans.rows = scan.rows;
  spans.spans = static_cast<uint32_t>(settings_.own_spans(scan.rows, false));
  spans.fill = settings_.fill;
  spans.agreed_spans = static_cast<uint32_t>(settings_.own_spans(scan.rows, true));
  spans.span = static_cast<uint32_t>(settings_.span);
  spans.keys = keys_.data();
  REPRISE_CUDA(key_spans(spans, stream), "choosing spans");
  queries.q = scan.q;
  queries.batch = scan.batch;
  queries.rows = scan.rows;
  queries.n_head = n_head_;
  queries.head_dim = head_dim_;
  queries.keys = keys_.data();
  queries.scale = query_scale_;
  REPRISE_CUDA(rotate_packed_queries(queries, stream), "rotating queries");
  return {};
}

Status DeviceReAttention::plan(const DevicePlan& plan, cudaStream_t stream) {
  std::vector<int32_t> ends;
  for (const SequenceStep& step : plan.steps) ends.push_back(step.prompt_end);
  if (ends != prompt_ends_) {
    prompt_ends_ = std::move(ends);
    REPRISE_CHECK(sent_prompt_ends_.send(prompt_ends_, plan.turn, stream));
  }
  return watch_.plan(plan, *this, stream);
}

Status DeviceReAttention::select(const DeviceQueries& queries, DeviceRead& read,
                                 cudaStream_t stream) {
  tile_bytes_ = tile_bytes(queries.kv.type, head_dim_);
  TopKeysArgs scan;
  scan.kv = queries.kv;
  scan.pages = queries.pages;
  scan.positions = queries.positions;
  scan.batch = queries.count;
  scan.capacity = queries.capacity;
  scan.q = queries.q_plain;
  scan.k = settings_.votes(queries.layer) ? static_cast<uint32_t>(settings_.ranks_of(1)) : 0;
  scan.votes = votes_.tables();
  scan.middle = middle_;
  KeySpansArgs spans;
  spans.pages = queries.pages;
  spans.capacity = queries.capacity;
  spans.list_pages = list_pages_.data();
  spans.list_slots = list_slots_.data();
  spans.list_angles = list_angles_.data();
  spans.list_keys = list_keys_.data();
  spans.list_capacity = list_capacity_;
  PackedQueriesArgs packed;
  packed.angles = queries.angles;
  packed.exact = q_exact_.data();
  REPRISE_CHECK(choose(queries.layer, queries.first, scan, spans, packed, stream));
  read.lists = {list_pages_.data(), list_slots_.data(), list_keys_.data(), 1, list_capacity_};
  read.angle_rows = list_angles_.data();
  read.q = q_exact_.data();
  return {};
}

Status DeviceReAttention::pack(const DevicePrompt& prompt, PackedPrompt& packed,
                               cudaStream_t stream) {
  const uint32_t last = prompt.rows.count - 1;
  TopKeysArgs scan;
  scan.middle = middle_;
  scan.middle.activate = settings_.reads_all_until(prompt_ends_[prompt.step]);
  const KeyRange32 middle =
      middle_of(scan.middle, prompt.rows.position + static_cast<int32_t>(last), prompt.rows.count);
  if (middle.begin >= middle.end) return {};
  scan.kv = prompt.kv;
  scan.pages = prompt.pages;
  scan.positions = prompt.positions + last;
  scan.batch = 1;
  scan.capacity = prompt.capacity;
  scan.rows = prompt.rows.count;
  scan.stride = stride();
  scan.q = prompt.q_plain;
  const bool votes = settings_.votes(prompt.layer, prompt.rows.position, scan.rows);
  scan.k = votes ? static_cast<uint32_t>(settings_.ranks_of(scan.rows)) : 0;
  scan.votes = prompt_votes_.tables();
  KeySpansArgs spans;
  spans.tokens = tokens_.data();
  spans.token_capacity = span_tokens_;
  spans.prefill = prefill_.data();
  PackedQueriesArgs queries;
  queries.angles = prompt.angles;
  queries.rounded = q_.data();
  REPRISE_CHECK(choose(prompt.layer, prompt.step, scan, spans, queries, stream));
  packed = {tokens_.data(), keys_.data(), span_tokens_, prefill_.data(), q_.data()};
  return {};
}

uint64_t DeviceReAttention::keys_read(const DeviceRow& row) const {
  const KeyRange32 middle = middle_of(middle_, row.position, 1);
  const auto length = static_cast<uint64_t>(row.position) + 1;
  if (middle.begin >= middle.end) return length;
  const uint64_t picks = settings_.votes(row.layer) ? n_head_ * settings_.decode_picks : 0;
  const uint64_t regions = settings_.agree > 0.0f ? Agreement::kRegions : 0;
  const uint64_t winners = std::max(std::min<uint64_t>(settings_.apart_spans, picks),
                                    std::min<uint64_t>(settings_.agreed_spans, picks) + regions);
  const auto always = static_cast<uint64_t>(widest_.sink + widest_.local);
  return std::min(length, always + winners * static_cast<uint64_t>(settings_.span));
}

uint64_t DeviceReAttention::index_bytes_read(const DeviceRow& row) const {
  const KeyRange32 middle = middle_of(middle_, row.position, 1);
  if (middle.begin >= middle.end || !settings_.votes(row.layer)) return 0;
  const uint64_t pages = static_cast<uint64_t>(middle.end - middle.begin) / kTokens + 1;
  return pages * n_kv_head_ * tile_bytes_ / static_cast<uint64_t>(interval_);
}

}  // namespace reprise
