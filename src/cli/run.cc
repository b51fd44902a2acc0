// `reprise run`: one question, optionally about documents, one answer.
#include <unistd.h>

#include "base/try.h"
#include "cli/answer.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/request_flags.h"

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
  git diff | reprise run -f - -p "Write a commit message."    - is standard input
  reprise run -p "Tell a story." --temp 0.8 --top-p 0.95 --seed 7
  reprise run --raw -p "def fibonacci(n):" -n 64              continues plain text
  reprise run -p "Hello" --json                               text, tokens, timings, counters)";
  }

  void declare(FlagSet& flags) override {
    flags.add({"prompt", "the question, or with --raw the text to continue", "text"}, prompt_);
    flags.add({"raw", "continue the prompt as plain text, without the chat template"}, raw_);
    add_request_flags(flags, options_);
  }

  Status run(Console& console) override {
    REPRISE_TRY(const std::string text, read_prompt());
    REPRISE_TRY(Conversation conversation, Conversation::open(options_, console));
    if (!options_.session.empty()) REPRISE_CHECK(conversation.restore(options_.session));

    std::vector<Message> messages;
    if (!options_.system.empty()) messages.push_back({"system", options_.system});
    messages.push_back({"user", text});
    REPRISE_TRY(std::vector<int32_t> prompt, make_prompt(conversation.engine(), messages));

    const Result<Answer> answer = conversation.answer(std::move(prompt), options_);
    const bool stopped = answer ? answer->finish == FinishReason::kCancelled
                                : answer.error().code == ErrorCode::kCancelled;
    if (stopped) console.stopped();  // what was read so far is still worth saving
    if (answer) {
      REPRISE_CHECK(report(*answer, conversation.model(), console));
      messages.push_back({"assistant", answer->text});
    }
    if (!options_.session.empty() && (answer || stopped))
      REPRISE_CHECK(conversation.save(options_.session, raw_ ? std::vector<Message>() : messages));
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }

 private:
  Result<std::string> read_prompt() {
    REPRISE_CHECK(check_text("--prompt", prompt_));
    REPRISE_CHECK(check_text("--system", options_.system));
    for (const std::string& stop : options_.stop) REPRISE_CHECK(check_text("--stop", stop));
    if (prompt_.empty() && options_.files.empty() && isatty(STDIN_FILENO) == 0)
      options_.files.emplace_back("-");
    REPRISE_TRY(const std::string document, read_documents(options_.files, options_.lossy));
    std::string text = document_message(document, prompt_);
    if (text.empty())
      return fail(ErrorCode::kEmptyPrompt,
                  "the prompt is empty; give one with -p TEXT, -f FILE or on standard input");
    return text;
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

  std::string prompt_;
  bool raw_ = false;
  RequestOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_run_command() { return std::make_unique<RunCommand>(); }

}  // namespace reprise::cli
