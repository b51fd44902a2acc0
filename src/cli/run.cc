// `reprise run`: one question, optionally about documents, one answer.
#include <unistd.h>

#include "base/try.h"
#include "cli/answer.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/fused.h"
#include "cli/request_flags.h"
#include "cli/session_messages.h"
#include "fusion/method.h"

namespace reprise::cli {
namespace {

class RunCommand : public Command {
 public:
  std::string_view name() const override { return "run"; }
  std::string_view summary() const override { return "answer one prompt, then end"; }
  std::string_view examples() const override {
    return R"(  reprise run -p "Why is the sky blue?"
  reprise run -f report.txt -p "What does it conclude?"       a question about a document
  reprise run -f report.txt -p "And the costs?" --session report.kv
                                       keeps what was read; the next question starts at once
  reprise run --store notes.kv --chunk a.txt --chunk b.txt -p "Which is later?"
                                       documents in a store are loaded, in any order
  git diff | reprise run -f - -p "Write a commit message."    - is standard input
  reprise run -p "Tell a story." --temp 0.8 --top-p 0.95 --seed 7
  reprise run --raw -p "def fibonacci(n):" -n 64              continues plain text
  reprise run -p "Hello" --json                               text, tokens, timings, counters)";
  }

  void declare(FlagSet& flags) override {
    flags_ = &flags;
    flags.add({"prompt", "the question, or with --raw the text to continue", "text"}, prompt_);
    flags.add({"raw", "continue the prompt as plain text, without the chat template"}, raw_);
    visit_options(fused_, flags);
    flags.add_list({"chunk", "document in the store; repeatable, after those of --file", "file"},
                   chunks_);
    add_request_flags(flags, options_);
  }

  Status run(Console& console) override {
    REPRISE_CHECK(check_text("--prompt", prompt_));
    REPRISE_CHECK(check_texts(options_));
    REPRISE_CHECK(parse_fusion(fused_.fusion));  // also where nothing is fused: a typo is an error
    if (raw_ && !options_.system.empty())
      console.warn("--raw leaves out the chat template, and --system with it");
    if (is_fused()) return run_fused(console);
    REPRISE_CHECK(check_not_fused());
    REPRISE_TRY(const std::string text, read_prompt());
    options_.engine.kv_type_of = options_.session;
    REPRISE_TRY(Conversation conversation, Conversation::open(options_, console));
    bool saves = !options_.session.empty();
    if (saves) {
      REPRISE_TRY(saves, conversation.restore(options_.session));
      if (saves) warn_of_talk(options_.session, console);
    }

    std::vector<Message> messages;
    if (!options_.system.empty()) messages.push_back({"system", options_.system});
    messages.push_back({"user", text});
    REPRISE_TRY(std::vector<int32_t> prompt, make_prompt(conversation.engine(), messages));
    REPRISE_CHECK(console.reached({"tokenize", text.size(), text.size(), "bytes"}));

    const Result<Answer> answer = conversation.answer(std::move(prompt), options_);
    const bool stopped = answer ? answer->finish == FinishReason::kCancelled
                                : answer.error().code == ErrorCode::kCancelled;
    if (stopped) console.stopped();  // what was read so far is still worth saving
    // So it is where nobody could be told.
    const bool untold = !answer && answer.error().code == ErrorCode::kFileUnwritable;
    Status shown;
    if (answer) {
      shown = report(*answer, conversation.model(), console);
      messages.push_back({"assistant", answer->text});
    }
    const bool read = answer || !conversation.session().tokens().empty();
    if (saves && (answer || stopped || untold) && read)
      REPRISE_CHECK(conversation.save(options_.session, raw_ ? std::vector<Message>() : messages));
    if (!answer) return tl::unexpected(answer.error());
    return shown;
  }

 private:
  Result<std::string> read_prompt() {
    if (prompt_.empty() && options_.files.empty() && isatty(STDIN_FILENO) == 0)
      options_.files.emplace_back("-");
    REPRISE_TRY(const std::string document, read_documents(options_.files, options_.lossy));
    std::string text = document_message(document, prompt_);
    if (text.empty())
      return fail(ErrorCode::kEmptyPrompt,
                  "the prompt is empty; give one with -p TEXT, -f FILE or on standard input");
    return text;
  }

  // A store that a variable or the configuration names is for other commands where nothing typed
  // needs it.
  bool is_fused() const {
    const bool stays = flags_->typed("session") || (chunks_.empty() && options_.files.empty());
    return !fused_.library.store.empty() &&
           (flags_->typed("store") || flags_->typed("chunk") || !stays);
  }

  // Variables and configuration files may have them for other commands.
  Status check_not_fused() {
    Status status;
    const auto check = [&](std::string_view name) {
      if (!status || !flags_->typed(name)) return;
      status = fail(ErrorCode::kInvalidArgument,
                    "--{} is for documents in a store; name it with --store DIR", name);
    };
    visit_options(fused_, [&](const OptionSpec& spec, auto&) { check(spec.name); });
    check("chunk");
    return status;
  }

  // The documents are chunks of the store, the question follows them.
  Status run_fused(Console& console) {
    if (prompt_.empty()) return fail(ErrorCode::kEmptyPrompt, "give the question with -p TEXT");
    if (!options_.session.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "--session keeps exact KV, --store gives KV that is not; choose one");
    }
    std::vector<std::string> texts, files = options_.files;
    files.insert(files.end(), chunks_.begin(), chunks_.end());
    if (files.empty()) {
      return fail(
          ErrorCode::kInvalidArgument,
          "name documents of the store with --chunk FILE, or let `reprise ask` choose them");
    }
    for (const std::string& file : files) {
      REPRISE_TRY(texts.emplace_back(), read_documents({file}, options_.lossy));
    }
    REPRISE_TRY(Conversation conversation, Conversation::open(options_, console));
    REPRISE_TRY(Library library, Library::open(conversation.engine(), fused_.library, false));
    std::vector<std::vector<int32_t>> chunks;
    for (const std::string& text : texts) {
      for (auto& chunk : library.cut(text)) chunks.push_back(std::move(chunk));
    }
    PartedPrompt prompt;
    if (raw_) {
      const Engine& engine = conversation.engine();
      prompt = {engine.tokenize(""), std::move(chunks), engine.tokenize(prompt_, false, false)};
    } else {
      std::vector<Message> messages;
      if (!options_.system.empty()) messages.push_back({"system", options_.system});
      messages.push_back({"user", prompt_});
      REPRISE_TRY(prompt, library.chat_prompt(messages, std::move(chunks)));
    }
    return answer_fused(conversation, library, prompt, fused_.fusion, options_, {}, console);
  }

  Result<std::vector<int32_t>> make_prompt(const Engine& engine,
                                           const std::vector<Message>& messages) const {
    if (raw_) return engine.tokenize(messages.back().content);
    return engine.chat_prompt(messages);
  }

  static Status report(const Answer& answer, const ModelInfo& model, Console& console) {
    if (console.json()) return console.print_json(answer_json(answer, model));
    if (const std::string remark = finish_remark(answer, model); !remark.empty())
      console.note(fmt::format("[{}]", remark));
    console.note(fmt::format("[{}]", answer_summary(answer, model)));
    return {};
  }

  const FlagSet* flags_ = nullptr;
  std::string prompt_;
  bool raw_ = false;
  FusedOptions fused_;
  std::vector<std::string> chunks_;
  RequestOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_run_command() { return std::make_unique<RunCommand>(); }

}  // namespace reprise::cli
