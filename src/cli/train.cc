// `reprise train predictor`: a network that forecasts attention, trained on the user's own texts.
#include "base/thread_pool.h"
#include "base/try.h"
#include "cli/command.h"
#include "cli/output_file.h"
#include "cli/request_flags.h"
#include "engine/model_path.h"
#include "methods/attention_predictor/net_file.h"
#include "methods/attention_predictor/trainer.h"
#include "text/tokenizer.h"

namespace reprise::cli {
namespace {

constexpr uint32_t kSmallShare = 8, kLargeShare = 4;  // budgets: one of so many tokens
constexpr size_t kRecordedRows = 256;                 // of a passage

struct TrainOptions {
  std::string what, out;
  std::vector<std::string> texts;
  uint32_t passages = 8;
  uint32_t length = 4096;
  TrainingOptions training;
  EngineOptions engine;
};

/// What predictors find on passages that no network was trained on.
struct Comparison {
  std::string name;
  double small = 0.0, large = 0.0;
};

class TrainCommand : public Command {
 public:
  std::string_view name() const override { return "train"; }
  std::string_view summary() const override { return "train what forecasts attention"; }
  std::string_view examples() const override {
    return R"(  reprise train predictor --text book.txt --text code.txt -o forecast.safetensors
  reprise run -f report.txt -p "Sum it up." --policy attention_predictor:file=forecast.safetensors)";
  }
  void declare(FlagSet& flags) override {
    flags.add_positional({"what", "predictor: of attention_predictor", "name"}, options_.what);
    flags.add_list({"text", "text to learn from; repeatable", "file"}, options_.texts);
    flags.add({"out", "safetensors file to write", "file"}, options_.out);
    flags.add(
        {"passages", "pieces of each text that are read; every fourth validates", "", 4, 1024},
        options_.passages);
    flags.add({"length", "of a passage", "tokens", 1024, 1 << 20}, options_.length);
    flags.add({"rows", "history that the network sees", "rows", 5, 128}, options_.training.rows);
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
    REPRISE_TRY(const auto passages, cut_passages(path));
    std::vector<Recording> training, validation;
    for (size_t i = 0; i < passages.size(); ++i) {
      if (!console.progress()(
              {"record", i * options_.length, passages.size() * options_.length, "tokens"})) {
        return fail(ErrorCode::kCancelled, "training was stopped");
      }
      REPRISE_TRY(Recording recording, record_attention(*model, pool, passages[i], kRecordedRows));
      (i % 4 == 3 ? validation : training).push_back(std::move(recording));
    }
    console.end_progress();
    return train(*model, training, validation, pool, console);
  }

 private:
  Status check() {
    if (options_.what != "predictor") {
      return fail(ErrorCode::kInvalidArgument, "\"{}\" cannot be trained, only predictor",
                  options_.what);
    }
    if (options_.texts.empty() || options_.out.empty()) {
      return fail(
          ErrorCode::kInvalidArgument,
          "name texts to learn from with --text FILE and the file to write with --out FILE");
    }
    TrainingOptions& training = options_.training;
    training.validation.budget = {options_.length / kSmallShare, 64, 64};
    return check_writable(options_.out);
  }

  /// Passages of every text in turn, evenly spread over it.
  Result<std::vector<std::vector<int32_t>>> cut_passages(const std::string& path) const {
    REPRISE_TRY(TokenizerData data, read_tokenizer(path));
    REPRISE_TRY(const auto tokenizer, Tokenizer::create(std::move(data)));
    std::vector<std::vector<int32_t>> passages;
    for (const std::string& name : options_.texts) {
      REPRISE_TRY(const std::string text, read_documents({name}, true));
      const auto tokens = tokenizer->encode(text, {.add_special = false, .parse_special = false});
      const size_t count = std::min<size_t>(options_.passages, tokens.size() / options_.length);
      for (size_t i = 0; i < count; ++i) {
        const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(i * tokens.size() / count);
        passages.emplace_back(begin, begin + options_.length);
      }
    }
    if (passages.size() >= 4) return passages;
    return fail(ErrorCode::kInvalidArgument,
                "the texts hold {} passages of {} tokens, 4 are the least; give more text or a "
                "smaller --length",
                passages.size(), options_.length);
  }

  Status train(const Model& model, std::span<const Recording> training,
               std::span<const Recording> validation, ThreadPool& pool, Console& console) {
    console.note(fmt::format("[{} passages to learn from, {} to validate; {} weights]",
                             training.size(), validation.size(),
                             sizeof(kernels::ScoreNet) / sizeof(float)));
    Trainer trainer(options_.training, training, validation, pool);
    const auto told = [&](const EpochReport& report) {
      console.note(fmt::format("[epoch {:>2}: loss {:.3e}, recovery {:.3f} %{}]", report.epoch,
                               report.loss, 100.0 * report.recovery, report.best ? " *" : ""));
      return console.progress()({"train", report.epoch, options_.training.epochs, "epochs"});
    };
    REPRISE_TRY(const ForecastNet net, trainer.train(told));
    console.end_progress();
    const auto table = compare(net, model.config(), validation, pool);
    std::vector<std::pair<std::string, std::string>> notes = {
        {"seed", fmt::format("{}", options_.training.seed)},
        {"length", fmt::format("{}", options_.length)}};
    for (const Comparison& row : table) {
      notes.emplace_back("recovery " + row.name,
                         fmt::format("{:.2f} {:.2f}", 100.0 * row.small, 100.0 * row.large));
    }
    REPRISE_CHECK(write_text_file(options_.out, forecast_net_file(net, model.config(), notes)));
    return print(table, console);
  }

  std::vector<Comparison> compare(const ForecastNet& net, const ModelConfig& config,
                                  std::span<const Recording> validation, ThreadPool& pool) const {
    const TrainingOptions& training = options_.training;
    const uint32_t period = training.validation.period;
    const size_t heads = config.n_kv_head;
    const auto shared = std::make_shared<const ForecastNet>(net);
    const auto average = [&](float factor) -> MakePredictor {
      return [=] { return std::make_unique<AveragePredictor>(heads, factor, period); };
    };
    const std::pair<std::string, MakePredictor> predictors[] = {
        {"network",
         [&] {
           return std::make_unique<NetworkPredictor>(heads, shared, training.factor, period);
         }},
        {"average 0.5", average(0.5f)},
        {"average 0.7", average(0.7f)},
        {"average 0.9", average(0.9f)},
        {"last row", average(0.0f)},
        {"best blocks", {}}};
    std::vector<Comparison> table;
    for (const auto& [name, make] : predictors) {
      const auto at = [&](uint32_t share) {
        RecoveryCase how = training.validation;
        how.budget = {options_.length / share, 64, 64};
        return closed_loop_recovery(validation, how, training.first_layer, make, pool);
      };
      table.push_back({name, at(kSmallShare), at(kLargeShare)});
    }
    return table;
  }

  Status print(std::span<const Comparison> table, Console& console) const {
    if (console.json()) {
      auto rows = nlohmann::ordered_json::array();
      for (const Comparison& row : table) {
        rows.push_back({{"name", row.name}, {"small", row.small}, {"large", row.large}});
      }
      return console.print_json({{"file", options_.out}, {"recovery", rows}});
    }
    std::string text = fmt::format("| recovery | budget {} | budget {} |\n|---|---|---|\n",
                                   options_.length / kSmallShare, options_.length / kLargeShare);
    for (const Comparison& row : table) {
      text += fmt::format("| {} | {:.2f} % | {:.2f} % |\n", row.name, 100.0 * row.small,
                          100.0 * row.large);
    }
    const auto better = [&](const Comparison& row) { return row.small >= table[0].small; };
    const bool beaten = std::any_of(table.begin() + 1, table.end() - 1, better);
    if (beaten)
      text += "An average finds as much as the network and costs less: leave file= away.\n";
    return console.print(text);
  }

  TrainOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_train_command() { return std::make_unique<TrainCommand>(); }

}  // namespace reprise::cli
