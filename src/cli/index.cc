// `reprise index`: reads documents ahead, so that questions about them are answered at once.
#include "base/try.h"
#include "cli/answer.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/request_flags.h"
#include "cli/session_messages.h"
#include "cli/text.h"

namespace reprise::cli {
namespace {

class IndexCommand : public Command {
 public:
  IndexCommand() { options_.policy = "csattention"; }

  std::string_view name() const override { return "index"; }
  std::string_view summary() const override { return "read documents ahead into a session file"; }
  std::string_view examples() const override {
    return R"(  reprise index report.txt --session report.kv
  reprise run -f report.txt -p "What does it conclude?" --session report.kv --policy csattention
                                       answers without reading the report again
  reprise index a.txt b.txt --session both.kv --policy csattention:keep=0.05,budget=256)";
  }

  void declare(FlagSet& flags) override {
    flags.add_positional_list({"file", "documents in order; - is standard input", "file"},
                              options_.files);
    flags.add({"session", "session file to write", "file"}, options_.session);
    flags.add({"policy", "which keys attention will read; its index is kept", "spec"},
              options_.policy);
    flags.add({"system", "system message of the conversation", "text"}, options_.system);
    flags.add({"lossy", "replace bytes of files that are not UTF-8 instead of stopping"},
              options_.lossy);
    visit_options(options_.engine, flags);
  }

  Status run(Console& console) override {
    if (options_.session.empty())
      return fail(ErrorCode::kInvalidArgument, "name the file to write with --session FILE");
    REPRISE_CHECK(check_texts(options_));
    REPRISE_TRY(const std::string document, read_documents(options_.files, options_.lossy));
    if (document.empty()) return fail(ErrorCode::kEmptyPrompt, "name documents with some text");
    REPRISE_TRY(Conversation conversation, Conversation::open(options_, console));
    std::vector<Message> messages;
    if (!options_.system.empty()) messages.push_back({"system", options_.system});
    messages.push_back({"user", document});
    REPRISE_TRY(auto prompt, conversation.engine().chat_prompt(messages));
    REPRISE_TRY(const Answer answer, conversation.read(std::move(prompt)));
    warn_of_talk(options_.session, console);
    REPRISE_CHECK(conversation.save(options_.session, {}));
    return report(answer, console);
  }

 private:
  Status report(const Answer& answer, Console& console) const {
    const Memory& memory = answer.memory;
    if (console.json()) {
      auto figures = nlohmann::ordered_json::object();
      for (const auto& [name, value] : answer.counters.policy) figures[name] = value;
      return console.print_json({{"session", options_.session},
                                 {"policy", options_.policy},
                                 {"tokens", answer.counters.prompt_tokens},
                                 {"prefill_ms", answer.timings.prefill_ms},
                                 {"kv_bytes", memory.kv_bytes},
                                 {"index_bytes", memory.index_bytes},
                                 {"figures", figures}});
    }
    console.note(fmt::format("[{}: {} tokens read in {:.2f} s; KV {}, index {}]", options_.session,
                             grouped(answer.counters.prompt_tokens),
                             answer.timings.prefill_ms / 1e3, bytes_text(memory.kv_bytes),
                             bytes_text(memory.index_bytes)));
    return {};
  }

  RequestOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_index_command() { return std::make_unique<IndexCommand>(); }

}  // namespace reprise::cli
