// `reprise store`: the KV of documents, computed ahead and kept in a folder.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cli/command.h"
#include "cli/fused.h"
#include "cli/request_flags.h"
#include "cli/text.h"
#include "engine/engine_impl.h"
#include "reprise/library.h"
#include "store/chunk_store.h"

namespace reprise::cli {
namespace {

class StoreCommand : public Command {
 public:
  std::string_view name() const override { return "store"; }
  std::string_view summary() const override { return "keep the KV of documents in a folder"; }
  std::string_view examples() const override {
    return R"(  reprise store add --store notes.kv notes/*.txt
                                       cuts files into chunks, reads each once, keeps its KV
  reprise store add --store notes.kv notes/*.txt --store-codec zstd
                                       the same in less room
  reprise store add --store cache.kv notes/*.txt --store-remote redis://host:6379
                                       takes from a shared store what is there, adds the rest
  reprise store list --store notes.kv  what is there
  reprise store rm --store notes.kv notes/old.txt
  reprise store verify --store notes.kv
                                       reads everything back; exit code 1 on any damage
  reprise store verify --store notes.kv --rebuild
                                       makes the index again first
  reprise store gc --store notes.kv    gives free room back to the system)";
  }

  void declare(FlagSet& flags) override {
    flags.add_positional_list(
        {"action", "add FILE..., list, rm FILE..., verify or gc; - is standard input", "", 0, 0,
         "add|list|rm|verify|gc"},
        words_);
    visit_options(library_, flags);
    flags.add({"rebuild", "with verify: make the index again from the segments"}, rebuild_);
    flags.add({"lossy", "with add: replace bytes of files that are not UTF-8 instead of stopping"},
              lossy_);
    visit_options(engine_, flags);
  }

  Status run(Console& console) override {
    static const std::map<std::string, Status (StoreCommand::*)(Console&), std::less<>> kActions = {
        {"add", &StoreCommand::add},
        {"list", &StoreCommand::list},
        {"rm", &StoreCommand::remove},
        {"verify", &StoreCommand::verify},
        {"gc", &StoreCommand::collect}};
    const auto action = words_.empty() ? kActions.end() : kActions.find(words_.front());
    if (action == kActions.end()) {
      return fail(ErrorCode::kInvalidArgument, "say what to do: add, list, rm, verify or gc");
    }
    if (library_.store.empty()) {
      return fail(ErrorCode::kInvalidArgument, "name the store's folder with --store DIR");
    }
    if (rebuild_ && words_.front() != "verify") {
      return fail(ErrorCode::kInvalidArgument, "--rebuild goes with store verify alone");
    }
    const bool takes_files = words_.front() == "add" || words_.front() == "rm";
    if (takes_files != (words_.size() > 1)) {
      return fail(ErrorCode::kInvalidArgument, "store {} {}", words_.front(),
                  takes_files ? "needs files" : "takes no files");
    }
    return (this->*action->second)(console);
  }

 private:
  using Tokens = std::vector<int32_t>;
  struct Added {
    uint64_t added = 0, known = 0, tokens = 0;
    uint64_t outdated = 0;  // parts in the store that the files no longer have
    uint64_t evicted = 0;
    bool stopped = false;
  };

  Status add(Console& console) {
    std::vector<std::string> texts;
    for (size_t i = 1; i < words_.size(); ++i) {
      REPRISE_TRY(texts.emplace_back(), read_documents({words_[i]}, lossy_));
    }
    REPRISE_TRY(const auto engine, Engine::load(engine_, console.progress()));
    console.end_progress();
    REPRISE_TRY(Library library, Library::open(*engine, library_, true));
    std::vector<std::vector<Tokens>> documents;
    documents.reserve(texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      if (documents.emplace_back(library.cut(texts[i])).empty()) {
        console.warn(fmt::format("{} has no text", words_[i + 1]));
      }
    }
    REPRISE_TRY(ChunkStore store, open());
    Added sum;
    REPRISE_CHECK(add_chunks(library, documents, sum, console));
    REPRISE_TRY(const auto after, store.list());
    sum.evicted = library.evicted();
    sum.outdated = outdated(store, *engine, after, documents);
    warn_of(library, console);
    return say_added(sum, console);
  }

  // Parts of earlier versions of the documents, which would be answered from. They stay: other
  // documents may have the same parts. What is no file has no versions; chunks of other models are
  // theirs.
  uint64_t outdated(ChunkStore& store, Engine& engine, const std::vector<ChunkRow>& rows,
                    const std::vector<std::vector<Tokens>>& documents) const {
    std::set<Tokens> current;
    for (const auto& chunks : documents) current.insert(chunks.begin(), chunks.end());
    const auto is_outdated = [&](const ChunkRow& row) {
      std::error_code ignored;
      if (!names(row.document) || !std::filesystem::is_regular_file(row.document, ignored))
        return false;
      const auto chunk = store.read(row);
      if (!chunk || !*chunk) return false;  // damaged: found when it is needed
      const ChunkRecord& record = (*chunk)->record();
      return record.header.model == engine.impl().model->fingerprint() &&
             !current.contains(record.tokens);
    };
    return static_cast<uint64_t>(std::ranges::count_if(rows, is_outdated));
  }

  // Until Ctrl-C, which keeps what was added.
  Status add_chunks(Library& library, const std::vector<std::vector<Tokens>>& documents, Added& sum,
                    Console& console) const {
    uint64_t total = 0;
    for (const auto& chunks : documents) {
      for (const Tokens& chunk : chunks) total += chunk.size();
    }
    const ProgressFn progress = console.progress();
    bool goes_on = true;
    for (size_t i = 0; i < documents.size() && goes_on; ++i) {
      for (size_t part = 0; part < documents[i].size() && goes_on; ++part) {
        const Tokens& chunk = documents[i][part];
        REPRISE_TRY(const bool is_new,
                    library.add(words_[i + 1], static_cast<uint32_t>(part), chunk));
        ++(is_new ? sum.added : sum.known);
        sum.tokens += chunk.size();
        goes_on = progress({"store", sum.tokens, total, "tokens"});
      }
    }
    console.end_progress();
    sum.stopped = !goes_on && sum.tokens < total;
    if (!goes_on) console.stopped();
    return {};
  }

  Status say_added(const Added& sum, Console& console) const {
    if (console.json()) {
      return console.print_json({{"added", sum.added},
                                 {"known", sum.known},
                                 {"tokens", sum.tokens},
                                 {"outdated", sum.outdated},
                                 {"evicted", sum.evicted},
                                 {"stopped", sum.stopped}});
    }
    std::string text =
        fmt::format("{}: {}{} chunks added, {} were there; {} tokens", library_.store,
                    sum.stopped ? "stopped before all was added; " : "", sum.added, sum.known,
                    grouped(sum.tokens));
    if (sum.outdated > 0) {
      text += fmt::format("; {} of older versions are still there: `store rm` drops a document",
                          sum.outdated);
    }
    if (sum.evicted > 0) {
      text += fmt::format("; {} evicted, as --store-size is {}", sum.evicted,
                          bytes_text(library_.store_size));
    }
    console.note(fmt::format("[{}]", text));
    return {};
  }

  /// Whether one of the files has this name.
  bool names(const std::string& document) const {
    return std::find(words_.begin() + 1, words_.end(), document) != words_.end();
  }

  Result<ChunkStore> open() const {
    return ChunkStore::open(library_.store, false, {.bytes = library_.store_size});
  }

  /// What a chunk's record says of it.
  struct Form {
    std::string codec = "damaged", model, shape, lead;

    Form() = default;
    explicit Form(const ChunkRecord& record)
        : codec(codec_name(record.codec)),
          model(fmt::format("{:016x}", record.header.model)),
          shape(fmt::format("{} layers, {} KV heads of {} dims, {}", record.header.n_layer,
                            record.header.n_kv_head, record.header.head_dim,
                            kernels::kv_type_name(record.identity().type))),
          lead(record.context.size() == 1 ? "none" : "passage") {}
  };

  static Form form_of(const ChunkStore& store, const ChunkRow& row) {
    const auto chunk = store.read(row);
    if (chunk && *chunk) return Form((*chunk)->record());
    Form none;
    if (!chunk) none.codec = "unreadable";
    return none;
  }

  Status list(Console& console) {
    REPRISE_TRY(ChunkStore store, open());
    REPRISE_TRY(const auto rows, store.list());
    REPRISE_TRY(const StoreStats stats, store.stats());
    warn_of(store, console);
    std::vector<Form> forms;
    for (const ChunkRow& row : rows) forms.push_back(form_of(store, row));
    return console.json() ? print_json(rows, forms, stats, console)
                          : print_text(rows, forms, stats, console);
  }

  static Status print_json(std::span<const ChunkRow> rows, std::span<const Form> forms,
                           const StoreStats& stats, Console& console) {
    auto chunks = nlohmann::ordered_json::array();
    for (size_t i = 0; i < rows.size(); ++i) {
      chunks.push_back({{"document", rows[i].document},
                        {"part", rows[i].part + 1},
                        {"tokens", rows[i].tokens},
                        {"codec", forms[i].codec},
                        {"bytes", rows[i].place.bytes},
                        {"used", rows[i].used},
                        {"model", forms[i].model},
                        {"kv", forms[i].shape},
                        {"lead", forms[i].lead}});
    }
    return console.print_json({{"chunks", chunks},
                               {"tokens", stats.tokens},
                               {"live_bytes", stats.live_bytes},
                               {"disk_bytes", stats.disk_bytes}});
  }

  static Status print_text(std::span<const ChunkRow> rows, std::span<const Form> forms,
                           const StoreStats& stats, Console& console) {
    std::string text;
    std::map<std::string, std::pair<uint64_t, uint64_t>> models;  // chunks and tokens
    for (size_t i = 0; i < rows.size(); ++i) {
      const ChunkRow& row = rows[i];
      const Form& form = forms[i];
      text += fmt::format("{} part {}: {} tokens, {}{}\n", escaped(row.document), row.part + 1,
                          grouped(row.tokens), bytes_text(row.place.bytes),
                          form.codec == "none" ? "" : ", " + form.codec);
      if (form.model.empty()) continue;
      auto& [chunks, tokens] =
          models[fmt::format("model {} ({}), --store-lead {}", form.model, form.shape, form.lead)];
      ++chunks;
      tokens += row.tokens;
    }
    for (const auto& [model, of] : models) {
      text +=
          fmt::format("{}: {} chunks, {} tokens\n", model, grouped(of.first), grouped(of.second));
    }
    text += fmt::format("{} chunks, {} tokens, {} ({} on disk)\n", grouped(stats.chunks),
                        grouped(stats.tokens), bytes_text(stats.live_bytes),
                        bytes_text(stats.disk_bytes));
    return console.print(text);
  }

  Status remove(Console& console) {
    REPRISE_TRY(ChunkStore store, open());
    REPRISE_TRY(auto rows, store.list());
    for (size_t i = 1; i < words_.size(); ++i) {
      if (std::ranges::find(rows, words_[i], &ChunkRow::document) != rows.end()) continue;
      return fail(
          ErrorCode::kFileNotFound,
          "{}: no chunk in '{}' is of this file, and none was removed; `reprise store list` "
          "names them",
          words_[i], library_.store);
    }
    std::erase_if(rows, [&](const ChunkRow& row) { return !names(row.document); });
    REPRISE_CHECK(store.remove(rows));
    warn_of(store, console);
    if (console.json()) return console.print_json({{"removed", rows.size()}});
    return console.print(fmt::format("{} chunks removed\n", rows.size()));
  }

  Status verify(Console& console) {
    if (rebuild_) REPRISE_CHECK(ChunkStore::rebuild(library_.store));
    REPRISE_TRY(ChunkStore store, open());
    REPRISE_TRY(const auto bad, store.verify());
    REPRISE_TRY(const StoreStats stats, store.stats());
    const std::string index = store.take_warning();
    if (!index.empty()) console.partly_failed(index);
    if (console.json()) {
      REPRISE_CHECK(console.print_json(
          {{"chunks", stats.chunks}, {"damaged", bad.size()}, {"index_damaged", !index.empty()}}));
    } else {
      REPRISE_CHECK(console.print(fmt::format("{} chunks, {}: {} damaged\n", stats.chunks,
                                              bytes_text(stats.live_bytes), bad.size())));
    }
    if (!bad.empty()) {
      console.partly_failed(fmt::format(
          "{} chunks are damaged, the first of '{}'; they are read anew when they are needed, and "
          "`reprise store gc` drops them",
          bad.size(), bad.front().document));
    }
    return {};
  }

  Status collect(Console& console) {
    REPRISE_TRY(ChunkStore store, open());
    REPRISE_TRY(const auto bad, store.verify());
    REPRISE_CHECK(store.remove(bad));
    REPRISE_TRY(const uint64_t freed, store.collect(1.0));
    warn_of(store, console);
    if (console.json()) {
      return console.print_json({{"freed_bytes", freed}, {"dropped", bad.size()}});
    }
    return console.print(
        fmt::format("{} freed, {} damaged chunks dropped\n", bytes_text(freed), bad.size()));
  }

  std::vector<std::string> words_;
  bool rebuild_ = false, lossy_ = false;
  LibraryOptions library_;
  EngineOptions engine_;
};

}  // namespace

std::unique_ptr<Command> make_store_command() { return std::make_unique<StoreCommand>(); }

}  // namespace reprise::cli
