#include "bench/fusion_bench.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/percentile.h"
#include "base/try.h"
#include "reprise/library.h"

namespace reprise {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kChunkTokens = 512, kHeadTokens = 16, kQuestionTokens = 32;
// Before each measurement: a device that was busy has lower clocks.
constexpr std::chrono::milliseconds kRest{200};
constexpr uint32_t kLeastContext = kHeadTokens + kChunkTokens + kQuestionTokens;

/// A folder that goes with it, or one that somebody named, which stays.
class StoreFolder {
 public:
  explicit StoreFolder(const std::string& named) : path_(named), temporary_(named.empty()) {
    if (!temporary_) return;
    std::string name = (fs::temp_directory_path() / "reprise-bench-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~StoreFolder() {
    std::error_code ignored;
    if (temporary_) fs::remove_all(path_, ignored);
  }
  StoreFolder(const StoreFolder&) = delete;
  StoreFolder& operator=(const StoreFolder&) = delete;
  const std::string& path() const { return path_; }

  /// Lets the system's cache forget its files, which are synced; not where they lie in memory.
  void drop_cached() const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(path_, ignored)) {
      const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (file < 0) continue;
      ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      ::close(file);
    }
  }

 private:
  std::string path_;
  bool temporary_;
};

class FusionBench {
 public:
  FusionBench(const BenchPlan& plan, BenchProgress& progress, BenchReport& report)
      : plan_(plan), progress_(progress), report_(report), folder_(plan.store) {}
  Status run();

 private:
  /// Where the chunks of a prompt lie.
  enum class From : uint8_t { kNowhere, kMemory, kFileCache, kDisk };
  static constexpr std::string_view kFromNames[] = {"", "memory", "file cache", "disk"};
  struct Subject {
    std::string fusion;
    From from = From::kNowhere;
    std::vector<double> ttft_ms, look_up_ms, wait_ms, place_ms, select_ms, last_row_ms;
    FusionReport last;
  };

  Status start();
  std::vector<int32_t> tokens(uint32_t count, uint32_t seed) const;
  PartedPrompt prompt(uint32_t context) const;
  Result<double> first_token_ms(Session& session, const PartedPrompt& prompt);
  Status measure(Subject& subject, const PartedPrompt& prompt);
  Status measure_context(uint32_t context);
  void add_row(const Subject& subject, uint32_t context, double full_ms);

  const BenchPlan& plan_;
  BenchProgress& progress_;
  BenchReport& report_;
  StoreFolder folder_;
  std::unique_ptr<Engine> engine_;
  std::optional<Library> library_, resident_;  // the latter where memory is given to it
};

Status FusionBench::start() {
  EngineOptions options = plan_.engine;
  const uint32_t longest = *std::max_element(plan_.contexts.begin(), plan_.contexts.end());
  // A chunk is read behind a passage, which a short context has no room for.
  options.ctx = std::max({options.ctx, longest + 2, 2 * kChunkTokens});
  options.prefix_cache = false;  // every prompt is computed, or loaded
  REPRISE_CHECK(validate(options));
  REPRISE_TRY(engine_, Engine::load(options, progress_.within()));
  report_.model = engine_->info();
  LibraryOptions stored;
  stored.store = folder_.path();
  stored.store_codec = plan_.store_codec;
  // Chunks may be stored in a wider type than that of pages.
  stored.store_size =
      std::max(stored.store_size, 4 * uint64_t{longest} * report_.model.kv_bytes_per_token);
  REPRISE_TRY(auto library, Library::open(*engine_, stored, true));
  library_.emplace(std::move(library));
  if (plan_.store_memory == 0) return {};
  stored.store_memory = plan_.store_memory;
  REPRISE_TRY(auto resident, Library::open(*engine_, stored, true));
  resident_.emplace(std::move(resident));
  return {};
}

Status FusionBench::run() {
  if (plan_.policies.size() > 1) {
    return fail(ErrorCode::kInvalidArgument, "--measure fusion takes one --policy");
  }
  for (const uint32_t context : plan_.contexts) {
    if (context < kLeastContext) {
      return fail(ErrorCode::kInvalidArgument,
                  "--context: --measure fusion needs contexts of at least {} tokens",
                  kLeastContext);
    }
  }
  REPRISE_CHECK(start());
  progress_.expect(plan_.contexts.size() * (plan_.bench.rounds + 1) *
                   (1 + (plan_.store_memory > 0 ? 3 : 2) * plan_.fusions.size()));
  for (const uint32_t context : plan_.contexts) REPRISE_CHECK(measure_context(context));
  return {};
}

std::vector<int32_t> FusionBench::tokens(uint32_t count, uint32_t seed) const {
  std::vector<int32_t> tokens(count);
  uint32_t state = seed;
  for (int32_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token =
        static_cast<int32_t>((state >> 8) % (report_.model.vocab / 2) + report_.model.vocab / 4);
  }
  return tokens;
}

/// Chunks between a short head and a question; the last of them is what is left of the context. The
/// others are those of longer prompts, too.
PartedPrompt FusionBench::prompt(uint32_t context) const {
  PartedPrompt prompt;
  prompt.head = tokens(kHeadTokens, 1);
  for (uint32_t left = context - kHeadTokens - kQuestionTokens; left > 0;) {
    const uint32_t count = std::min(left, kChunkTokens);
    prompt.chunks.push_back(tokens(count, 100 + static_cast<uint32_t>(prompt.chunks.size())));
    left -= count;
  }
  prompt.question = tokens(kQuestionTokens, 2);
  return prompt;
}

Result<double> FusionBench::first_token_ms(Session& session, const PartedPrompt& prompt) {
  Request request;
  request.prompt = prompt.tokens();
  request.max_tokens = 1;
  request.ignore_end = true;
  request.on_progress = progress_.within();
  REPRISE_TRY(const Answer answer, session.generate(request));
  return answer.timings.ttft_ms;
}

Status FusionBench::measure(Subject& subject, const PartedPrompt& prompt) {
  if (subject.from == From::kDisk) folder_.drop_cached();
  REPRISE_TRY(const auto session, engine_->open(plan_.policies.front()));
  std::this_thread::sleep_for(kRest);
  if (!subject.fusion.empty()) {
    Library& library = subject.from == From::kMemory ? *resident_ : *library_;
    REPRISE_TRY(subject.last, library.fuse(*session, prompt, subject.fusion, progress_.within()));
  }
  REPRISE_TRY(const double ms, first_token_ms(*session, prompt));
  subject.ttft_ms.push_back(subject.last.total_ms + ms);
  subject.look_up_ms.push_back(subject.last.look_up_ms);
  subject.wait_ms.push_back(subject.last.wait_ms);
  subject.place_ms.push_back(subject.last.place_ms);
  subject.select_ms.push_back(subject.last.select_ms);
  subject.last_row_ms.push_back(subject.fusion.empty() ? 0.0 : ms);
  return progress_.tick();
}

Status FusionBench::measure_context(uint32_t context) {
  const PartedPrompt prompt = this->prompt(context);
  for (uint32_t i = 0; i < prompt.chunks.size(); ++i) {
    REPRISE_CHECK(library_->add("bench", i, prompt.chunks[i]).map([](bool) {}));
  }
  std::vector<Subject> subjects(1);  // full prefill
  for (const std::string& fusion : plan_.fusions) {
    for (const From from : {From::kMemory, From::kFileCache, From::kDisk}) {
      if (from == From::kMemory && !resident_) continue;
      subjects.push_back({fusion, from, {}, {}, {}, {}, {}, {}, {}});
    }
  }
  for (uint32_t round = 0; round <= plan_.bench.rounds; ++round) {
    for (Subject& subject : subjects) {
      REPRISE_CHECK(measure(subject, prompt));
      if (round > 0) continue;  // it takes memory, and fills the cache that a cold run empties
      for (auto* times : {&subject.ttft_ms, &subject.look_up_ms, &subject.wait_ms,
                          &subject.place_ms, &subject.select_ms, &subject.last_row_ms}) {
        times->clear();
      }
    }
  }
  const double full_ms = percentile(subjects.front().ttft_ms, 0.5);
  for (const Subject& subject : subjects) add_row(subject, context, full_ms);
  return {};
}

void FusionBench::add_row(const Subject& subject, uint32_t context, double full_ms) {
  FusionTimes row;
  row.policy = plan_.policies.front();
  row.fusion = subject.fusion.empty() ? "full prefill" : subject.fusion;
  row.from = kFromNames[static_cast<size_t>(subject.from)];
  if (subject.from != From::kNowhere && plan_.store_codec != "none") {
    row.from += ", " + plan_.store_codec;
  }
  row.context = context;
  row.ttft_ms = percentile(subject.ttft_ms, 0.5);
  row.worst_ms = percentile(subject.ttft_ms, 1.0);
  row.vs_full = full_ms / row.ttft_ms;
  row.loaded_rows = subject.last.loaded_rows;
  row.recomputed_rows = subject.last.recomputed_rows;
  row.mean_position = subject.last.mean_position;
  row.loaded_bytes = subject.last.loaded_bytes;
  row.look_up_ms = percentile(subject.look_up_ms, 0.5);
  row.wait_ms = percentile(subject.wait_ms, 0.5);
  row.place_ms = percentile(subject.place_ms, 0.5);
  row.select_ms = percentile(subject.select_ms, 0.5);
  row.last_row_ms = percentile(subject.last_row_ms, 0.5);
  report_.fusion.push_back(row);
}

}  // namespace

Status measure_fusion(const BenchPlan& plan, BenchProgress& progress, BenchReport& report) {
  return FusionBench(plan, progress, report).run();
}

nlohmann::ordered_json fusion_json(const BenchReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const FusionTimes& row : report.fusion) {
    rows.push_back({{"policy", row.policy},
                    {"fusion", row.fusion},
                    {"from", row.from},
                    {"context", row.context},
                    {"ttft_ms", row.ttft_ms},
                    {"worst_ms", row.worst_ms},
                    {"vs_full", row.vs_full},
                    {"loaded_rows", row.loaded_rows},
                    {"recomputed_rows", row.recomputed_rows},
                    {"mean_position", row.mean_position},
                    {"loaded_bytes", row.loaded_bytes},
                    {"look_up_ms", row.look_up_ms},
                    {"wait_ms", row.wait_ms},
                    {"place_ms", row.place_ms},
                    {"select_ms", row.select_ms},
                    {"last_row_ms", row.last_row_ms}});
  }
  return rows;
}

std::string fusion_markdown(const BenchReport& report) {
  if (report.fusion.empty()) return "";
  const std::string& device = report.machine.device;
  std::string text = fmt::format(
      "{} on {}, policy {}; time to the first token, loading included\n\n"
      "| context | fusion | KV from | median ms | worst ms | vs full | rows computed again | mean "
      "place | loaded GB | looking up ms | waits ms | placing ms | choosing ms | last row ms "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
      report.model.name, device.empty() ? fmt::format("{} threads", report.threads) : device,
      report.fusion.front().policy);
  for (const FusionTimes& row : report.fusion) {
    const double share = static_cast<double>(row.recomputed_rows) /
                         static_cast<double>(std::max<uint64_t>(1, row.loaded_rows));
    text += fmt::format(
        "| {} | {} | {} | {:.1f} | {:.1f} | {:.2f}x | {:.1f} % | {:.2f} | {:.2f} | {:.1f} | {:.1f} "
        "| {:.1f} | {:.1f} | {:.1f} |\n",
        row.context, row.fusion, row.from, row.ttft_ms, row.worst_ms, row.vs_full, 100 * share,
        row.mean_position, static_cast<double>(row.loaded_bytes) / 1e9, row.look_up_ms, row.wait_ms,
        row.place_ms, row.select_ms, row.last_row_ms);
  }
  return text;
}

}  // namespace reprise
