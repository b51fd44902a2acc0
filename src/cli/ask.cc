// `reprise ask`: answers a question from documents in a store.
#include <algorithm>

#include "base/try.h"
#include "cli/command.h"
#include "cli/fused.h"
#include "cli/request_flags.h"
#include "fusion/method.h"

namespace reprise::cli {
namespace {

class AskCommand : public Command {
 public:
  AskCommand() { options_.max_tokens = 256; }

  std::string_view name() const override { return "ask"; }
  std::string_view summary() const override { return "answer a question from stored documents"; }
  std::string_view examples() const override {
    return R"(  reprise store add --store notes.kv notes/*.txt
  reprise ask --store notes.kv "When does the lease end?"
                                       the answer, and which parts of which files it read
  reprise ask --store notes.kv "Who signed it?" --passages 4 --fusion pie --json)";
  }

  void declare(FlagSet& flags) override {
    flags.add_positional({"question", "what to ask", "text"}, question_);
    flags.add({"passages", "chunks of the store to read, those with the question's words", "chunks",
               1, 1000},
              passages_);
    visit_options(fused_, flags);
    add_answer_flags(flags, options_);
  }

  Status run(Console& console) override {
    REPRISE_CHECK(check_text("QUESTION", question_));
    REPRISE_CHECK(check_texts(options_));
    REPRISE_CHECK(parse_fusion(fused_.fusion));
    if (question_.find_first_not_of(" \t\r\n") == std::string::npos) {
      return fail(ErrorCode::kEmptyPrompt, "what is the question?");
    }
    REPRISE_TRY(Conversation conversation, Conversation::open(options_, console));
    REPRISE_TRY(Library library, Library::open(conversation.engine(), fused_.library, false));
    REPRISE_TRY(auto passages, library.search(question_, passages_));
    if (passages.empty()) {
      warn_of(library, console);
      return fail(
          ErrorCode::kEmptyPrompt,
          "no chunk of '{}' for this model, --kv-type, --precision, --store-lead and "
          "--chat-template has a word of the question; `reprise store list` shows what is there",
          fused_.library.store);
    }
    // The best one stands next to the question.
    std::reverse(passages.begin(), passages.end());
    std::vector<Message> messages;
    if (!options_.system.empty()) messages.push_back({"system", options_.system});
    messages.push_back({"user", question_});
    std::vector<std::vector<int32_t>> chunks;
    for (const Passage& passage : passages) chunks.push_back(passage.tokens);
    REPRISE_TRY(const PartedPrompt prompt, library.chat_prompt(messages, std::move(chunks)));
    std::reverse(passages.begin(), passages.end());
    nlohmann::ordered_json extra = {{"sources", sources(passages)}};
    const Status answered =
        answer_fused(conversation, library, prompt, fused_.fusion, options_, extra, console);
    if (!answered) return explained(answered.error(), prompt, conversation.model());
    for (const Passage& passage : passages) {
      console.note(fmt::format("[source: {} part {}, score {:.2f}]", passage.document,
                               passage.part + 1, passage.score));
    }
    return {};
  }

 private:
  // What is too long for a prompt is these passages.
  static Status explained(const Error& error, const PartedPrompt& prompt, const ModelInfo& model) {
    if (error.code == ErrorCode::kContextExceeded) {
      return fail(error.code,
                  "{} passages and the question have {} tokens, the context holds {}; choose fewer "
                  "--passages, or raise --ctx",
                  prompt.chunks.size(), prompt.tokens().size(), model.context);
    }
    if (error.code == ErrorCode::kOutOfMemory) {
      return fail(error.code, "{}, or choose fewer --passages (now {})", error.message,
                  prompt.chunks.size());
    }
    return tl::unexpected<Error>(error);
  }

  static nlohmann::ordered_json sources(const std::vector<Passage>& passages) {
    auto list = nlohmann::ordered_json::array();
    for (const Passage& passage : passages) {
      list.push_back({{"document", passage.document},
                      {"part", passage.part + 1},
                      {"score", passage.score},
                      {"tokens", passage.tokens.size()}});
    }
    return list;
  }

  std::string question_;
  uint32_t passages_ = 8;
  FusedOptions fused_;
  RequestOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_ask_command() { return std::make_unique<AskCommand>(); }

}  // namespace reprise::cli
