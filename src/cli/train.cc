// `reprise train predictor`: a network that forecasts attention, trained on the user's own texts.
#include <fmt/ranges.h>

#include <filesystem>

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

constexpr uint32_t kShares[] = {16, 8, 4};  // budgets that are compared: one of so many tokens
constexpr uint32_t kTrainedShare = 8;
constexpr size_t kRecordedRows = 256;  // of a passage

struct TrainOptions {
  std::string what, out;
  std::vector<std::string> texts, tests;
  uint32_t passages = 8;
  uint32_t length = 4096;
  TrainingOptions training;
  EngineOptions engine;
};

/// Passages that no network was trained on.
struct TestSet {
  std::string name;
  std::vector<Recording> recordings;
};

/// Share of attention that a predictor finds.
struct Comparison {
  std::string name;
  std::vector<double> recovery;  // [sets, kShares]
};

class TrainCommand : public Command {
 public:
  std::string_view name() const override { return "train"; }
  std::string_view summary() const override { return "train what forecasts attention"; }
  std::string_view examples() const override {
    return R"(  reprise train predictor --text book.txt --text code.txt -o net.safetensors
  reprise run -f report.txt -p "Sum it up." --policy attention_predictor:file=net.safetensors)";
  }
  void declare(FlagSet& flags) override {
    flags.add_positional({"what", "predictor: of attention_predictor", "name"}, options_.what);
    flags.add_list({"text", "text to learn from; repeatable", "file"}, options_.texts);
    flags.add_list(
        {"test", "text of another kind to compare on, not learned from; repeatable", "file"},
        options_.tests);
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
    REPRISE_TRY(const auto tokenizer, open_tokenizer(path));
    std::vector<Recording> training;
    std::vector<TestSet> sets = {{"validation", {}}};
    for (const std::string& name : options_.texts) {
      REPRISE_TRY(auto recordings, record(*model, pool, *tokenizer, name, console));
      for (size_t i = 0; i < recordings.size(); ++i) {
        (i % 4 == 3 ? sets[0].recordings : training).push_back(std::move(recordings[i]));
      }
    }
    if (training.empty() || sets[0].recordings.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "no text holds 4 passages of {} tokens; give more text or a smaller --length",
                  options_.length);
    }
    for (const std::string& name : options_.tests) {
      REPRISE_TRY(auto recordings, record(*model, pool, *tokenizer, name, console));
      sets.push_back({std::filesystem::path(name).stem().string(), std::move(recordings)});
    }
    console.end_progress();
    return train(model->config(), training, sets, pool, console);
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
    training.validation.budget = budget(kTrainedShare);
    return check_writable(options_.out);
  }

  static Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& path) {
    REPRISE_TRY(TokenizerData data, read_tokenizer(path));
    return Tokenizer::create(std::move(data));
  }

  /// The attention of passages that are evenly spread over a text.
  Result<std::vector<Recording>> record(Model& model, ThreadPool& pool, const Tokenizer& tokenizer,
                                        const std::string& name, Console& console) const {
    REPRISE_TRY(const std::string text, read_documents({name}, true));
    const auto tokens = tokenizer.encode(text, {.add_special = false, .parse_special = false});
    const size_t count = std::min<size_t>(options_.passages, tokens.size() / options_.length);
    std::vector<Recording> recordings;
    for (size_t i = 0; i < count; ++i) {
      if (!console.progress()({"record", i, count, "passages"})) {
        return fail(ErrorCode::kCancelled, "training was stopped");
      }
      const auto passage = std::span(tokens).subspan(i * tokens.size() / count, options_.length);
      REPRISE_TRY(Recording recording, record_attention(model, pool, passage, kRecordedRows));
      recordings.push_back(std::move(recording));
    }
    return recordings;
  }

  Status train(const ModelConfig& config, std::span<const Recording> training,
               std::span<const TestSet> sets, ThreadPool& pool, Console& console) {
    console.note(fmt::format("[{} passages to learn from, {} to validate; {} weights]",
                             training.size(), sets[0].recordings.size(),
                             sizeof(kernels::ScoreNet) / sizeof(float)));
    Trainer trainer(options_.training, training, sets[0].recordings, pool);
    const auto told = [&](const EpochReport& report) {
      console.note(fmt::format("[epoch {:>2}: loss {:.3e}, recovery {:.3f} %{}]", report.epoch,
                               report.loss, 100.0 * report.recovery, report.best ? " *" : ""));
      return console.progress()({"train", report.epoch, options_.training.epochs, "epochs"});
    };
    REPRISE_TRY(const ForecastNet net, trainer.train(told));
    console.end_progress();
    const auto table = compare(net, config, sets, pool);
    std::vector<std::pair<std::string, std::string>> notes = {
        {"seed", fmt::format("{}", options_.training.seed)},
        {"length", fmt::format("{}", options_.length)}};
    for (const Comparison& row : table) {
      notes.emplace_back("recovery " + row.name,
                         fmt::format("{:.4f}", fmt::join(row.recovery, " ")));
    }
    REPRISE_CHECK(write_text_file(options_.out, forecast_net_file(net, config, notes)));
    return print(table, sets, console);
  }

  std::vector<Comparison> compare(const ForecastNet& net, const ModelConfig& config,
                                  std::span<const TestSet> sets, ThreadPool& pool) const {
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
      Comparison& row = table.emplace_back(Comparison{name, {}});
      for (const TestSet& set : sets) {
        for (const uint32_t share : kShares) {
          RecoveryCase how = training.validation;
          how.budget = budget(share);
          row.recovery.push_back(
              closed_loop_recovery(set.recordings, how, training.first_layer, make, pool));
        }
      }
    }
    return table;
  }

  Status print(std::span<const Comparison> table, std::span<const TestSet> sets,
               Console& console) const {
    if (console.json()) {
      auto rows = nlohmann::ordered_json::object();
      for (const Comparison& row : table) rows[row.name] = row.recovery;
      auto columns = nlohmann::ordered_json::array();
      for (const TestSet& set : sets) {
        for (const uint32_t share : kShares)
          columns.push_back({{"set", set.name}, {"share", share}});
      }
      return console.print_json({{"file", options_.out}, {"columns", columns}, {"recovery", rows}});
    }
    std::string head = "| recovery |", rule = "|---|", body;
    for (const TestSet& set : sets) {
      for (const uint32_t share : kShares) {
        head += fmt::format(" {} 1/{} |", set.name, share);
        rule += "---|";
      }
    }
    for (const Comparison& row : table) {
      body += fmt::format("| {} |", row.name);
      for (const double recovery : row.recovery)
        body += fmt::format(" {:.2f} % |", 100.0 * recovery);
      body += "\n";
    }
    const auto better = [&](const Comparison& row) {
      return row.recovery[1] >= table[0].recovery[1];
    };
    const bool beaten = std::any_of(table.begin() + 1, table.end() - 1, better);
    if (beaten)
      body += "An average finds as much as the network and costs less: leave file= away.\n";
    return console.print(fmt::format("{}\n{}\n{}", head, rule, body));
  }

  BlockBudget budget(uint32_t share) const { return {options_.length / share, 16, 32}; }

  TrainOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_train_command() { return std::make_unique<TrainCommand>(); }

}  // namespace reprise::cli
