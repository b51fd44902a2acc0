#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/percentile.h"
#include "base/try.h"
#include "bench/decode_together.h"
#include "bench/engine_peer.h"
#include "engine/engine_impl.h"
#include "model/random_model.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Multiply-adds of the matrices for one row, without the output head.
double matrix_flops(const ModelInfo& m) {
  const double q = double{1} * m.n_head * m.head_dim, kv = 2.0 * m.n_kv_head * m.head_dim;
  return 2.0 * m.n_layer * (m.hidden * (q + kv) + q * m.hidden + 3.0 * m.hidden * m.ffn);
}

bool has_quantised_weights(const ModelInfo& m) {
  return m.quantization != "F32" && m.quantization != "F16" && m.quantization != "BF16";
}

/// Adds a part of each figure. All answers of a policy have the same ones, but for those that it
/// had no occasion for.
void add_figures(const PolicyStats& from, double part, PolicyStats& sums) {
  for (const auto& [name, value] : from) {
    auto found = std::ranges::find(sums, name, &PolicyStats::value_type::first);
    if (found == sums.end()) found = sums.insert(sums.end(), {name, 0.0});
    found->second += part * value;
  }
}

/// Of causal attention over a whole prompt.
double attention_flops(const ModelInfo& m, double context) {
  return 4.0 * m.n_layer * m.n_head * m.head_dim * context * (context + 1) / 2;
}

/// Of a round: steps are short beside prompts, and a shared machine changes within seconds.
constexpr uint32_t kDecodeTurns = 5;

/// Decode's steps against the bandwidth right after them, by turn.
struct Shares {
  std::vector<double> gb_s, pct;  // [rounds x kDecodeTurns]

  void add(double measured_gb_s, double bytes, double step_ms) {
    gb_s.push_back(measured_gb_s);
    pct.push_back(bytes / (measured_gb_s * 1e6) / step_ms * 100);
  }
};

class Bench {
 public:
  Bench(const BenchPlan& plan, Roof& roof, BenchProgress& progress, BenchReport& report)
      : plan_(plan), roof_(roof), progress_(progress), report_(report) {}
  Status run();

 private:
  struct Subject {  // a policy, or one setting of the peer
    std::string name, note;
    size_t setting = 0;
    bool is_peer = false;
    std::vector<std::unique_ptr<Session>> sessions;  // hold the contexts while decode is measured
    std::vector<double> prefill_ms, decode_ms;
    Shares of_memory, of_roof;
    double decode_bytes = 0, index_bytes = 0, select_ms = 0;  // of a step
    PolicyStats prefill_figures, decode_figures;
  };

  Status start();
  Status start_peer(uint32_t longest);
  std::vector<Subject*> subjects_at(uint32_t context);
  bool measures_prefill(uint32_t context) const;
  Status measure_context(uint32_t context);
  Status prepare(Subject& subject, uint32_t context);
  Result<Answer> read_prompt(Session& session, std::vector<int32_t> tokens);
  Status measure_prefill(Subject& subject, uint32_t context);
  Status measure_decode(Subject& subject);
  /// Returns the milliseconds of each step.
  Result<std::vector<double>> decode_sessions(Subject& subject);
  void add_rows(uint32_t context);
  static BenchRow timed_row(const Subject& subject, uint32_t context,
                            const std::vector<double>& ms);
  BenchRow decode_row(const Subject& subject, uint32_t context) const;
  BenchRow prefill_row(const Subject& subject, uint32_t context) const;
  std::vector<int32_t> prompt(uint32_t context, uint32_t sequence) const;
  /// Of max_tokens the first warms the caches.
  uint32_t timed_steps() const { return plan_.bench.max_tokens - 1; }

  const BenchPlan& plan_;
  Roof& roof_;
  BenchProgress& progress_;
  BenchReport& report_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EnginePeer> peer_;
  std::vector<Subject> subjects_;
};

Status Bench::start() {
  EngineOptions options = plan_.engine;
  const uint32_t longest = *std::max_element(plan_.contexts.begin(), plan_.contexts.end());
  const uint32_t answer = tokens_together(timed_steps(), plan_.bench.sequences);
  options.ctx = std::max(options.ctx, longest + answer);
  options.batch = std::max(options.batch, plan_.bench.sequences);
  options.prefix_cache = !plan_.bench.prefill;  // every prefill that is measured is computed
  REPRISE_CHECK(validate(options));
  REPRISE_TRY(engine_, Engine::load(options, progress_.within()));
  report_.model = engine_->info();
  for (const std::string& policy : plan_.policies) {
    Subject& subject = subjects_.emplace_back();
    subject.name = policy;
    if (plan_.bench.copy_prompt && plan_.bench.sequences > 1) subject.note = "copies of one prompt";
    REPRISE_CHECK(engine_->open(policy).map([](auto&&) {}));  // a wrong spec is told at once
  }
  if (plan_.peer == kEnginePeer) REPRISE_CHECK(start_peer(options.ctx));
  return {};
}

Status Bench::start_peer(uint32_t longest) {
  if (report_.model.path.starts_with(kRandomPrefix)) {
    return fail(ErrorCode::kInvalidArgument, "{} reads model files; {} is none", plan_.peer,
                report_.model.path);
  }
  REPRISE_TRY(auto peer, EnginePeer::start({report_.model.path, report_.threads, longest,
                                            report_.model.kv_type}));
  peer_ = std::make_unique<EnginePeer>(std::move(peer));
  for (size_t i = 0; i < peer_->settings().size(); ++i) {
    Subject& subject = subjects_.emplace_back();
    subject.name = plan_.peer;
    subject.note = peer_->version() + ", " + peer_->settings()[i];
    subject.setting = i;
    subject.is_peer = true;
  }
  return {};
}

Status Bench::run() {
  REPRISE_CHECK(start());
  for (const uint32_t context : plan_.contexts) {
    const uint32_t passes = kDecodeTurns + (measures_prefill(context) ? 1 : 0);
    progress_.expect(subjects_at(context).size() * (1 + plan_.bench.rounds * passes));
  }
  for (const uint32_t context : plan_.contexts) REPRISE_CHECK(measure_context(context));
  report_.kv = engine_->kv();
  return {};
}

std::vector<Bench::Subject*> Bench::subjects_at(uint32_t context) {
  std::vector<Subject*> present;
  for (Subject& subject : subjects_) {
    if (!subject.is_peer || context <= plan_.bench.peer_max) present.push_back(&subject);
  }
  return present;
}

Status Bench::measure_context(uint32_t context) {
  for (Subject& subject : subjects_) {
    subject.prefill_ms.clear();
    subject.decode_ms.clear();
    subject.of_memory = subject.of_roof = {};
  }
  const auto subjects = subjects_at(context);
  const uint32_t rounds = plan_.bench.rounds;
  if (measures_prefill(context)) {
    for (uint32_t round = 0; round < rounds; ++round) {
      for (Subject* subject : subjects) REPRISE_CHECK(measure_prefill(*subject, context));
    }
  }
  for (Subject* subject : subjects) REPRISE_CHECK(prepare(*subject, context));
  for (uint32_t turn = 0; turn < rounds * kDecodeTurns; ++turn) {
    for (Subject* subject : subjects) REPRISE_CHECK(measure_decode(*subject));
  }
  for (Subject& subject : subjects_) subject.sessions.clear();
  const size_t first_row = report_.rows.size();
  add_rows(context);
  if (plan_.on_rows) plan_.on_rows(report_, first_row);
  return {};
}

bool Bench::measures_prefill(uint32_t context) const {
  return plan_.bench.prefill && context <= plan_.bench.prefill_max;
}

std::vector<int32_t> Bench::prompt(uint32_t context, uint32_t sequence) const {
  // Speed does not depend on what the tokens say; every one is an ordinary word of the vocabulary.
  std::vector<int32_t> tokens(context);
  uint32_t state = context + sequence;
  for (int32_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token =
        static_cast<int32_t>((state >> 8) % (report_.model.vocab / 2) + report_.model.vocab / 4);
  }
  return tokens;
}

Result<Answer> Bench::read_prompt(Session& session, std::vector<int32_t> tokens) {
  Request request;
  request.prompt = std::move(tokens);
  request.max_tokens = 0;
  request.on_progress = progress_.within();
  return session.generate(request);
}

Status Bench::measure_prefill(Subject& subject, uint32_t context) {
  if (subject.is_peer) {
    REPRISE_TRY(const double ms, peer_->prefill(subject.setting, prompt(context, 0)));
    subject.prefill_ms.push_back(ms);
    return progress_.tick();
  }
  REPRISE_TRY(const auto session, engine_->open(subject.name));
  const auto start = Clock::now();
  REPRISE_TRY(const Answer answer, read_prompt(*session, prompt(context, 0)));
  subject.prefill_ms.push_back(ms_since(start));
  subject.prefill_figures = answer.counters.policy;
  return progress_.tick();
}

Status Bench::prepare(Subject& subject, uint32_t context) {
  if (subject.is_peer) {
    REPRISE_CHECK(peer_->fill(subject.setting, prompt(context, 0)));
    return progress_.tick();
  }
  // Sequences share no KV, as users' do not.
  for (uint32_t i = 0; i < plan_.bench.sequences; ++i) {
    REPRISE_TRY(auto session, engine_->open(subject.name));
    if (plan_.bench.copy_prompt && i > 0) {
      const Policy& policy = *session->impl().sequence.policy;
      REPRISE_CHECK(
          engine_->impl().scheduler.copy_prefix(policy, prompt(context, 0), prompt(context, i)));
    }
    REPRISE_CHECK(read_prompt(*session, prompt(context, i)).map([](auto&&) {}));
    subject.sessions.push_back(std::move(session));
  }
  return progress_.tick();
}

Status Bench::measure_decode(Subject& subject) {
  if (!subject.is_peer) {
    REPRISE_TRY(const auto step_ms, decode_sessions(subject));
    REPRISE_TRY(const double gb_s, roof_.read_gb_s(static_cast<size_t>(subject.decode_bytes)));
    const double median_ms = percentile(step_ms, 0.5);
    subject.decode_ms.insert(subject.decode_ms.end(), step_ms.begin(), step_ms.end());
    subject.of_roof.add(gb_s, subject.decode_bytes, median_ms);
    subject.of_memory.add(roof_.memory_gb_s(), subject.decode_bytes, median_ms);
    return progress_.tick();
  }
  REPRISE_TRY(const auto times, peer_->decode(subject.setting, plan_.bench.max_tokens));
  subject.decode_ms.insert(subject.decode_ms.end(), times.begin() + 1, times.end());
  return progress_.tick();
}

Result<std::vector<double>> Bench::decode_sessions(Subject& subject) {
  REPRISE_TRY(DecodedTogether decoded,
              decode_together(*engine_, subject.sessions, timed_steps(), progress_.within()));
  subject.decode_figures.clear();
  subject.decode_bytes = static_cast<double>(report_.model.weight_bytes);
  subject.index_bytes = subject.select_ms = 0;
  for (const Answer& answer : decoded.answers) {
    const Counters& read = answer.counters;
    const auto steps = static_cast<double>(answer.tokens.size() - 1);
    const double index_bytes = static_cast<double>(read.index_bytes_read) / steps;
    subject.index_bytes += index_bytes;
    subject.decode_bytes += static_cast<double>(read.kv_bytes_read) / steps + index_bytes;
    subject.select_ms += read.select_ms / steps;
    add_figures(read.policy, 1.0 / static_cast<double>(decoded.answers.size()),
                subject.decode_figures);
  }
  return std::move(decoded.step_ms);
}

BenchRow Bench::timed_row(const Subject& subject, uint32_t context, const std::vector<double>& ms) {
  BenchRow row;
  row.policy = subject.name;
  row.note = subject.note;
  row.context = context;
  row.median_ms = percentile(ms, 0.5);
  row.p99_ms = percentile(ms, 0.99);
  return row;
}

BenchRow Bench::decode_row(const Subject& subject, uint32_t context) const {
  BenchRow row = timed_row(subject, context, subject.decode_ms);
  row.phase = "decode";
  row.batch = subject.is_peer ? 1 : plan_.bench.sequences;
  row.tok_s = row.batch * 1000.0 / row.median_ms;
  if (!subject.is_peer) {
    row.figures = subject.decode_figures;
    row.select_ms = subject.select_ms;
    row.bytes_per_token = subject.decode_bytes / row.batch;
    row.index_bytes_per_token = subject.index_bytes / row.batch;
    row.memory_gb_s = percentile(subject.of_memory.gb_s, 0.5);
    row.memory_pct = percentile(subject.of_memory.pct, 0.5);
    row.roof_gb_s = percentile(subject.of_roof.gb_s, 0.5);
    row.roof_pct = percentile(subject.of_roof.pct, 0.5);
  }
  return row;
}

BenchRow Bench::prefill_row(const Subject& subject, uint32_t context) const {
  BenchRow row = timed_row(subject, context, subject.prefill_ms);
  row.phase = "prefill";
  row.figures = subject.prefill_figures;
  row.tok_s = context * 1000.0 / row.median_ms;
  if (subject.name == "full") {
    const MachineRoof& machine = report_.machine;
    const double matrices = matrix_flops(report_.model) * context;
    const double attention = attention_flops(report_.model, context);
    const double matrix_peak =
        has_quantised_weights(report_.model) ? machine.quantised_tflop_s : machine.bf16_tflop_s;
    const double least_ms = (matrices / matrix_peak + attention / machine.bf16_tflop_s) * 1e-9;
    row.flops_per_token = (matrices + attention) / context;
    row.roof_pct = least_ms / row.median_ms * 100;
  }
  return row;
}

void Bench::add_rows(uint32_t context) {
  for (const bool decode : {false, true}) {
    std::vector<BenchRow> rows;
    for (const Subject& subject : subjects_) {
      if (decode ? subject.decode_ms.empty() : subject.prefill_ms.empty()) continue;
      const BenchRow row = decode ? decode_row(subject, context) : prefill_row(subject, context);
      const bool again = !rows.empty() && subject.is_peer && rows.back().policy == row.policy;
      if (!again)
        rows.push_back(row);
      else if (row.median_ms < rows.back().median_ms)
        rows.back() = row;  // its faster setting
    }
    double full_ms = 0, peer_ms = 0;
    for (const BenchRow& row : rows) {
      if (row.policy == "full") full_ms = row.median_ms / row.batch;
      if (row.policy == plan_.peer) peer_ms = row.median_ms;
    }
    for (BenchRow& row : rows) {
      row.vs_full = full_ms / (row.median_ms / row.batch);
      if (peer_ms > 0 && row.batch == 1) {  // the peer decodes one sequence
        row.vs_peer = peer_ms / row.median_ms;
        row.peer = plan_.peer;
      }
      report_.rows.push_back(row);
    }
  }
}

}  // namespace

Status BenchProgress::tick() {
  ++done_;
  if (goes_on()) return {};
  return fail(ErrorCode::kCancelled, "cancelled after {} of {} measurements", done_, total_);
}

ProgressFn BenchProgress::within() {
  return [this](const Progress&) { return goes_on(); };
}

Status measure_engine(const BenchPlan& plan, Roof& roof, BenchProgress& progress,
                      BenchReport& report) {
  return Bench(plan, roof, progress, report).run();
}

}  // namespace reprise
