// `reprise train predictor`: a network that forecasts attention, trained on the user's own texts.
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/thread_pool.h"
#include "base/try.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/output_file.h"
#include "cli/predictor_table.h"
#include "cli/request_flags.h"
#include "engine/model_path.h"
#include "methods/attention_predictor/net_file.h"
#include "text/tokenizer.h"

namespace reprise::cli {
namespace {

constexpr uint32_t kTrainedShare = 8;
constexpr size_t kRecordedRows = 256;                                 // of a passage
constexpr uint32_t kRows = 16, kPublishedRows = 64, kFewestRows = 5;  // of histories

struct TrainOptions {
  std::string what, out, form = "residual";
  std::vector<std::string> texts, tests, compared;
  uint32_t passages = 8;
  uint32_t length = 4096;
  uint32_t rows = 0;
  TrainingOptions training;
  EngineOptions engine;
};

struct Text {
  std::string name;
  std::vector<int32_t> tokens;
  size_t passages = 0;
};

class TrainCommand : public Command {
 public:
  std::string_view name() const override { return "train"; }
  std::string_view summary() const override { return "train what forecasts attention"; }
  std::string_view examples() const override {
    return R"(  reprise train predictor --text book.txt --text code.txt -o net.safetensors
  reprise train predictor --text book.txt --form published -o cnn.safetensors
  reprise run -f report.txt -p "Sum it up." --policy attention_predictor:file=net.safetensors)";
  }
  void declare(FlagSet& flags) override {
    flags.add_positional({"what", "predictor: of attention_predictor", "name"}, options_.what);
    flags.add_list({"text", "text to learn from; repeatable", "file"}, options_.texts);
    flags.add_list(
        {"test", "text of another kind to compare on, not learned from; repeatable", "file"},
        options_.tests);
    flags.add_list({"compare", "network to compare with, trained before; repeatable", "file"},
                   options_.compared);
    flags.add({"out", "safetensors file to write", "file"}, options_.out);
    flags.add(
        {"passages", "pieces of each text that are read; every fourth validates", "", 4, 1024},
        options_.passages);
    flags.add({"length", "of a passage", "tokens", 1024, 1 << 20}, options_.length);
    flags.add({"form",
               "residual: of square roots of blocks' sums, added to their average; published: the "
               "paper's, of blocks' best keys",
               "", 0, 0, "residual|published"},
              options_.form);
    flags.add({"rows", "history that the network sees; 0 = 16, as published 64", "rows", 0, 128},
              options_.rows);
    flags.add({"epochs", "of 100 steps, at most", "", 1, 1000}, options_.training.epochs);
    flags.add({"seed", "of weights and samples"}, options_.training.seed);
    visit_options(options_.engine, [&](const OptionSpec& spec, auto& field) {
      if (spec.name == "model" || spec.name == "threads") flags.add(spec, field);
    });
  }

  Status run(Console& console) override {
    REPRISE_CHECK(check());
    REPRISE_TRY(const std::string path, resolve_model(options_.engine.model));
    ThreadPool pool(static_cast<int>(options_.engine.threads));
    REPRISE_TRY(auto model, Model::load(path, pool, 0, console.progress()));
    REPRISE_TRY(const auto tokenizer, open_tokenizer(path));
    REPRISE_CHECK(check_model(model->config()));
    REPRISE_CHECK(load_compared(model->config()));
    REPRISE_TRY(const auto texts, read(*tokenizer, options_.texts));
    REPRISE_TRY(const auto tests, read(*tokenizer, options_.tests));
    REPRISE_CHECK(check_lengths(texts, tests));
    std::vector<Recording> training;
    std::vector<TestSet> sets = {{"validation", {}}};
    for (const Text& text : texts) {
      REPRISE_TRY(auto recordings, record(*model, pool, text, console));
      for (size_t i = 0; i < recordings.size(); ++i) {
        (i % 4 == 3 ? sets[0].recordings : training).push_back(std::move(recordings[i]));
      }
    }
    for (const Text& text : tests) {
      REPRISE_TRY(auto recordings, record(*model, pool, text, console));
      sets.push_back({std::filesystem::path(text.name).stem().string(), std::move(recordings)});
    }
    console.end_progress();
    return train(model->config(), training, sets, pool, console);
  }

 private:
  Status check() {
    if (options_.what != "predictor") {
      return fail(ErrorCode::kInvalidArgument, "{}; `reprise train predictor` does",
                  options_.what.empty() ? "say what to train"
                                        : '"' + options_.what + "\" cannot be trained");
    }
    if (options_.texts.empty() || options_.out.empty()) {
      return fail(
          ErrorCode::kInvalidArgument,
          "name texts to learn from with --text FILE and the file to write with --out FILE");
    }
    TrainingOptions& training = options_.training;
    training.published = options_.form == "published";
    training.rows = options_.rows > 0 ? options_.rows : training.published ? kPublishedRows : kRows;
    if (training.rows < kFewestRows) {
      return fail(ErrorCode::kInvalidArgument, "--rows {}: a network sees {} rows at least",
                  training.rows, kFewestRows);
    }
    training.validation.budget = share_budget(options_.length, kTrainedShare);
    training.validation.warm = std::max(training.validation.warm, training.rows);
    largest_ = training.published;
    REPRISE_CHECK(check_not_read("--out", options_.out, options_.texts));
    return check_writable("--out", options_.out);
  }

  Status check_model(const ModelConfig& config) const {
    if (options_.length > config.context) {
      return fail(ErrorCode::kInvalidArgument,
                  "--length {}: the model was trained on {} tokens; give a --length of {} at most",
                  options_.length, config.context, config.context);
    }
    return check_layers(config, options_.training.first_layer);
  }

  Status load_compared(const ModelConfig& config) {
    for (const std::string& file : options_.compared) {
      REPRISE_TRY(ForecastNet net, load_forecast_net(file, config));
      if (net.rows >= kRecordedRows) {
        return fail(ErrorCode::kUnsupported,
                    "--compare: {} sees {} rows, and of a passage {} are recorded: none is left to "
                    "be forecast; name networks of fewer rows",
                    file, net.rows, kRecordedRows);
      }
      uint32_t& warm = options_.training.validation.warm;
      warm = std::max(warm, net.rows);
      largest_ |= net.pool == BlockPool::kMax;
      nets_.push_back(
          {std::filesystem::path(file).stem().string(), std::make_shared<const ForecastNet>(net)});
    }
    return {};
  }

  Result<std::vector<Text>> read(const Tokenizer& tokenizer,
                                 const std::vector<std::string>& names) {
    std::vector<Text> texts;
    for (const std::string& name : names) {
      REPRISE_TRY(const std::string text, read_documents({name}, true));
      auto tokens = tokenizer.encode(text, {.add_special = false, .parse_special = false});
      const size_t passages = std::min<size_t>(options_.passages, tokens.size() / options_.length);
      texts.push_back({name, std::move(tokens), passages});
      to_record_ += passages * options_.length;
      REPRISE_CHECK(go_on());
    }
    return texts;
  }

  /// Before minutes are spent on recording.
  Status check_lengths(std::span<const Text> texts, std::span<const Text> tests) const {
    constexpr size_t kFewest = 4;  // of which one validates
    constexpr std::string_view kAdvice = "give more text or a smaller --length";
    if (std::ranges::none_of(texts, [](const Text& text) { return text.passages >= kFewest; })) {
      return fail(ErrorCode::kInvalidArgument, "no text holds {} passages of {} tokens; {}",
                  kFewest, options_.length, kAdvice);
    }
    for (const Text& text : tests) {
      if (text.passages > 0) continue;
      return fail(ErrorCode::kInvalidArgument, "--test: {} holds no passage of {} tokens; {}",
                  text.name, options_.length, kAdvice);
    }
    return {};
  }

  static Status go_on() {
    return interrupted() ? fail(ErrorCode::kCancelled, "training was stopped") : Status();
  }

  /// The attention of passages that are evenly spread over a text.
  Result<std::vector<Recording>> record(Model& model, ThreadPool& pool, const Text& text,
                                        Console& console) {
    std::vector<Recording> recordings;
    const auto told = [&, progress = console.progress()](const Progress& one) {
      return progress({one.stage, recorded_ + one.done, to_record_, one.unit});
    };
    for (size_t i = 0; i < text.passages; ++i) {
      const size_t first = i * text.tokens.size() / text.passages;
      const auto passage = std::span(text.tokens).subspan(first, options_.length);
      REPRISE_TRY(Recording recording,
                  record_attention(model, pool, passage, kRecordedRows, largest_, told));
      recordings.push_back(std::move(recording));
      recorded_ += options_.length;
    }
    return recordings;
  }

  Status train(const ModelConfig& config, std::span<const Recording> training,
               std::span<const TestSet> sets, ThreadPool& pool, Console& console) {
    console.note(fmt::format("[{} passages of {} rows to learn from, {} to validate; {} weights]",
                             training.size(), kRecordedRows, sets[0].recordings.size(),
                             sizeof(kernels::ScoreNet) / sizeof(float)));
    Trainer trainer(options_.training, training, sets[0].recordings, pool);
    const auto start = std::chrono::steady_clock::now();
    const auto told = [&](const EpochReport& report) {
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
      console.note(fmt::format("[epoch {:>2}: loss {:.3e}, recovery {:.3f} %, {:.0f} s{}]",
                               report.epoch, report.loss, 100.0 * report.recovery, spent.count(),
                               report.best ? " *" : ""));
    };
    REPRISE_TRY(const ForecastNet net, trainer.train(told, console.progress()));
    console.end_progress();
    nets_.insert(nets_.begin(), {"network", std::make_shared<const ForecastNet>(net)});
    const ComparisonCase how = {nets_, sets, &options_.training, options_.length, config.n_kv_head};
    const auto table = compare_predictors(how, pool);
    REPRISE_CHECK(go_on());
    std::vector<std::pair<std::string, std::string>> notes = {
        {"seed", fmt::format("{}", options_.training.seed)},
        {"length", fmt::format("{}", options_.length)}};
    for (const Comparison& row : table) {
      notes.emplace_back("recovery " + row.name,
                         fmt::format("{:.4f}", fmt::join(row.recovery, " ")));
    }
    REPRISE_CHECK(write_text_file(options_.out, forecast_net_file(net, config, notes)));
    return print_comparison(table, how, options_.out, console);
  }

  TrainOptions options_;
  std::vector<NamedNet> nets_;             // in the table
  bool largest_ = false;                   // blocks' best keys are recorded, too
  uint64_t to_record_ = 0, recorded_ = 0;  // tokens
};

}  // namespace

std::unique_ptr<Command> make_train_command() { return std::make_unique<TrainCommand>(); }

}  // namespace reprise::cli
