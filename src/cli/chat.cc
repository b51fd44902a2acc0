// `reprise chat`: a conversation of many turns, with /commands.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>

#include "base/nearest.h"
#include "base/system.h"
#include "base/try.h"
#include "cli/answer.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/request_flags.h"
#include "cli/session_messages.h"
#include "cli/text.h"

namespace reprise::cli {
namespace {

class Chat {
 public:
  Chat(Conversation conversation, RequestOptions options, Console& console)
      : conversation_(std::move(conversation)),
        options_(std::move(options)),
        console_(console),
        editor_(user_file("XDG_STATE_HOME", ".local/state", "history")) {}

  Status start();
  /// Talks until the end, whatever ends it; afterwards the session file is written.
  Status run();

 private:
  struct SlashCommand {
    std::string_view name, argument, help;
    Status (Chat::*run)(const std::string& argument);
  };
  static std::span<const SlashCommand> slash_commands();

  Status check_document(std::string_view option, const std::string& file) const;
  Status talk();
  Status handle(const std::string& line);
  Status slash(const std::string& line);
  Status ask(const std::string& text);
  Status answer();
  void drop_last_turn();
  Status forget();
  static bool talked(const std::vector<Message>& messages);
  bool talked() const { return talked(messages_); }
  bool must_save() const;
  Status end_session();
  Status save_session();
  Status leave_for(const std::string& path);
  Status resume(const std::string& path);
  void note_restored(const std::string& path);

  Status help(const std::string&);
  Status reset(const std::string&);
  Status system(const std::string& text);
  Status read(const std::string& path);
  Status save(const std::string& path);
  Status load(const std::string& path);
  Status undo(const std::string&);
  Status retry(const std::string&);
  Status stats(const std::string&);
  Status policy(const std::string& spec);
  Status quit(const std::string&);

  Conversation conversation_;
  RequestOptions options_;
  Console& console_;
  LineEditor editor_;
  std::vector<Message> messages_;
  std::string resumed_;   // messages of the session file, packed
  std::string kept_;      // those that /save wrote last
  std::string loaded_;    // those that /load read last
  FileStamp stamp_;       // of that file, as it was read or saved last
  std::string document_;  // goes before the next question
  std::optional<Answer> last_;
  nlohmann::ordered_json turns_ = nlohmann::ordered_json::array();
  bool done_ = false;
  bool failed_ = false;  // saving, when the talk had ended
  bool other_ = false;   // the session file holds another talk than the one that was loaded
};

std::span<const Chat::SlashCommand> Chat::slash_commands() {
  static constexpr SlashCommand kCommands[] = {
      {"/help", "", "this list", &Chat::help},
      {"/read", "FILE", "put a document before the next question, behind others that wait",
       &Chat::read},
      {"/reset", "", "forget the conversation, keep the system message", &Chat::reset},
      {"/system", "TEXT", "start again with this system message", &Chat::system},
      {"/undo", "", "take back the last question and its answer", &Chat::undo},
      {"/retry", "", "answer the last question again", &Chat::retry},
      {"/save", "FILE", "write the conversation and its KV", &Chat::save},
      {"/load", "FILE", "go on with a saved conversation", &Chat::load},
      {"/policy", "SPEC", "read keys by another policy", &Chat::policy},
      {"/stats", "", "cost of the last answer", &Chat::stats},
      {"/quit", "", "end; Ctrl-D does the same", &Chat::quit},
  };
  return kCommands;
}

Status Chat::start() {
  for (const std::string& file : options_.files) REPRISE_CHECK(check_document("-f", file));
  REPRISE_TRY(document_, read_documents(options_.files, options_.lossy));
  if (!options_.session.empty()) {
    stamp_ = file_stamp(options_.session);
    const bool there =
        std::filesystem::exists(options_.session) && !is_empty_file(options_.session);
    REPRISE_CHECK(resume(options_.session));
    if (there && !talked() && document_.empty()) {
      console_.warn(
          fmt::format("{} holds no conversation, and this one will take its place; -f FILE "
                      "asks about a document that was read ahead",
                      options_.session));
    }
    if (talked()) note_restored(options_.session);
    resumed_ = pack_messages(messages_);
  }
  const std::string& system = options_.system;
  if (!talked() && !system.empty()) messages_.clear();
  if (messages_.empty() && !system.empty()) messages_.push_back({"system", system});
  if (!system.empty() && (messages_[0].role != "system" || messages_[0].content != system))
    console_.warn("--system: the conversation keeps what it began with; /system starts another");
  if (editor_.interactive())
    console_.note(fmt::format("[{}, context {} tokens; /help lists commands, Ctrl-D ends]",
                              conversation_.model().name, grouped(conversation_.model().context)));
  return {};
}

// A document on standard input would take the place of the questions, but at a keyboard.
Status Chat::check_document(std::string_view option, const std::string& file) const {
  if (file != "-" || isatty(STDIN_FILENO) != 0) return {};
  return fail(ErrorCode::kInvalidArgument,
              "{} -: questions come from standard input; name the document's file", option);
}

Status Chat::run() {
  Status ended = talk();
  Status saved = end_session();
  if (ended && !saved && saved.error().code != ErrorCode::kCancelled && editor_.interactive() &&
      !asked_to_end()) {
    console_.warn(
        fmt::format("{}; /save FILE keeps the talk elsewhere, Ctrl-D tries once more and ends",
                    saved.error().message));
    failed_ = true;
    done_ = false;
    ended = talk();
    saved = end_session();
  }
  editor_.finish();
  if (!ended && !saved) console_.warn(saved.error().message);
  const Status& status = ended ? saved : ended;
  if (!console_.json()) return status;
  auto json = nlohmann::ordered_json::object();
  if (!status) json["error"] = console_.error_json(status.error());
  json["messages"] = nlohmann::ordered_json::parse(pack_messages(messages_));
  json["turns"] = turns_;
  const Status printed = console_.print_json(json);
  return status ? printed : status;
}

Status Chat::talk() {
  std::string line;
  while (!done_ && !asked_to_end()) {
    const LineEditor::Event event = editor_.read(line);
    if (event == LineEditor::Event::kEnd) break;
    if (event == LineEditor::Event::kFailed)
      return fail(ErrorCode::kFileUnreadable, "standard input: {}", std::strerror(errno));
    if (event == LineEditor::Event::kInterrupt) {
      if (editor_.interactive()) continue;
      console_.stopped();
      break;
    }
    const Status status = handle(line);
    if (!status && !editor_.interactive()) return status;  // a script must not go on blindly
    if (!status && status.error().code == ErrorCode::kFileUnwritable && line[0] != '/')
      return status;  // the terminal is gone
    if (!status) console_.warn(status.error().message);
  }
  return {};
}

Status Chat::handle(const std::string& line) {
  if (line.find_first_not_of(" \t\r") == std::string::npos) return {};
  if (line[0] == '/') return slash(line);
  return ask(line);
}

Status Chat::slash(const std::string& line) {
  constexpr std::string_view kSpaces = " \n";  // what is pasted may have several lines
  const size_t space = line.find_first_of(kSpaces);
  const std::string name = line.substr(0, space);
  const size_t start = space == std::string::npos ? space : line.find_first_not_of(kSpaces, space);
  std::string argument = start == std::string::npos ? "" : line.substr(start);
  argument.erase(argument.find_last_not_of(kSpaces) + 1);
  std::vector<std::string_view> names;
  for (const SlashCommand& command : slash_commands()) {
    names.push_back(command.name);
    if (command.name != name) continue;
    if (!command.argument.empty() && argument.empty())
      return fail(ErrorCode::kInvalidArgument, "{} needs {}: {}", name, command.argument,
                  command.help);
    return (this->*command.run)(argument);
  }
  return fail(ErrorCode::kInvalidArgument, "unknown command {}{}; /help lists them", name,
              suggestion(name, names));
}

Status Chat::ask(const std::string& text) {
  REPRISE_CHECK(check_text("the question", text));
  messages_.push_back({"user", document_message(document_, text)});
  const Status status = answer();
  if (status) {
    document_.clear();
  } else {
    messages_.pop_back();  // not answered: it may be asked again
  }
  return status;
}

Status Chat::answer() {
  REPRISE_TRY(auto prompt, conversation_.engine().chat_prompt(messages_));
  auto answer = conversation_.answer(std::move(prompt), options_);
  const bool stopped = !answer && answer.error().code == ErrorCode::kCancelled && interrupted();
  if (stopped && editor_.interactive()) {
    acknowledge_interrupt();
    return fail(ErrorCode::kUnsupported, "stopped while {}; ask again to go on from there",
                console_.state());
  }
  if (!answer) return tl::unexpected(answer.error());
  if (interrupted()) acknowledge_interrupt();
  if (const std::string remark = finish_remark(*answer, conversation_.model()); !remark.empty())
    console_.note(fmt::format("[{}]", remark));
  messages_.push_back({"assistant", answer->text});
  if (console_.json()) turns_.push_back(answer_json(*answer, conversation_.model()));
  last_ = std::move(*answer);
  return {};
}

void Chat::drop_last_turn() {
  if (!messages_.empty() && messages_.back().role == "assistant") messages_.pop_back();
  if (!messages_.empty() && messages_.back().role == "user") messages_.pop_back();
}

bool Chat::talked(const std::vector<Message>& messages) {
  return std::ranges::any_of(messages, [](const Message& m) { return m.role == "assistant"; });
}

// Without KV, as after another policy, messages are still worth keeping, and those that were taken
// back go from the file. Where they are the file's, its KV may be of other settings, and is worth
// more than none.
bool Chat::must_save() const {
  if (options_.session.empty()) return false;
  if (other_) return talked() && pack_messages(messages_) != loaded_;
  if (!conversation_.session().tokens().empty()) return true;
  if (pack_messages(messages_) == resumed_) return false;
  return talked() || talked(unpack_messages(resumed_));
}

Status Chat::end_session() {
  editor_.keep_history();
  if (interrupted() || asked_to_end()) console_.stopped();  // saving goes on
  const bool elsewhere = failed_ && pack_messages(messages_) == kept_;
  return must_save() && !elsewhere ? save_session() : Status();
}

// What another program saved meanwhile, as a talk in another window, is not lost, nor is the
// file's own talk where another was loaded.
Status Chat::save_session() {
  std::string path = options_.session;
  if (std::filesystem::exists(path) && (other_ || file_stamp(path) != stamp_)) {
    for (int i = 2; std::filesystem::exists(path); ++i) {
      path = fmt::format("{}.{}", options_.session, i);
    }
    console_.warn(fmt::format(
        "{} {} and stays as it is; this talk goes to {}", options_.session,
        other_ ? "holds another talk" : "was written by another program meanwhile", path));
  }
  return conversation_.save(path, messages_);
}

// Saves the talk at hand before that of a file takes its place; not where the talk goes back to
// what its own file holds.
Status Chat::leave_for(const std::string& path) {
  const std::string& own = options_.session;
  std::error_code absent;
  const bool same = std::filesystem::equivalent(path, own, absent);
  const bool back = same && !other_, changed = other_ || pack_messages(messages_) != resumed_;
  if (!back && changed && must_save()) {
    const bool unchanged = file_stamp(own) == stamp_;
    REPRISE_CHECK(save_session());
    if (unchanged) stamp_ = file_stamp(own);
  }
  const auto there = read_messages(own);
  other_ = !same && there && talked(*there);
  return {};
}

// What a session file is to hold of messages that were taken back: nothing. What is left of the
// others' KV is what the next prompt would begin with.
Status Chat::forget() {
  Session& session = conversation_.session();
  const auto tokens = session.tokens();
  size_t kept = 0;
  if (const auto prompt = conversation_.engine().chat_prompt(messages_)) {
    kept = static_cast<size_t>(std::ranges::mismatch(tokens, *prompt).in1 - tokens.begin());
  }
  if (session.truncate(kept)) return {};
  return conversation_.reopen(options_.policy);
}

// A question that nobody answered, as of a run that was stopped, is left out.
Status Chat::resume(const std::string& path) {
  REPRISE_TRY(messages_, conversation_.resume(path));
  if (!messages_.empty() && messages_.back().role == "user") messages_.pop_back();
  return {};
}

void Chat::note_restored(const std::string& path) {
  console_.note(fmt::format("[{}: {} messages, {} tokens restored]", path, messages_.size(),
                            grouped(conversation_.session().tokens().size())));
}

Status Chat::help(const std::string&) {
  for (const SlashCommand& command : slash_commands())
    console_.tell(fmt::format("  {:<8} {:<5} {}", command.name, command.argument, command.help));
  console_.tell("  Ctrl-C stops an answer.");
  return {};
}

Status Chat::reset(const std::string&) {
  std::erase_if(messages_, [](const Message& message) { return message.role != "system"; });
  document_.clear();
  return forget();
}

Status Chat::system(const std::string& text) {
  REPRISE_CHECK(check_text("the system message", text));
  document_.clear();
  messages_ = {{"system", text}};
  return forget();
}

Status Chat::read(const std::string& path) {
  REPRISE_CHECK(check_document("/read", path));
  REPRISE_TRY(const std::string document, read_documents({path}, options_.lossy));
  document_ = document_message(document_, document);
  console_.note(fmt::format("[{} bytes; ask about them]", grouped(document_.size())));
  return {};
}

Status Chat::save(const std::string& path) {
  const size_t tokens = conversation_.session().tokens().size();
  if (!talked())
    return fail(ErrorCode::kInvalidArgument, "there is nothing to save yet; ask a question first");
  REPRISE_CHECK(check_session_path("/save", path));
  const bool unchanged = file_stamp(options_.session) == stamp_;
  REPRISE_CHECK(conversation_.save(path, messages_));
  if (unchanged) stamp_ = file_stamp(options_.session);  // perhaps that is where it went
  kept_ = pack_messages(messages_);
  console_.note(
      fmt::format("[{}: {} messages, {} tokens saved]", path, messages_.size(), grouped(tokens)));
  return {};
}

Status Chat::load(const std::string& path) {
  const auto there = read_messages(path);  // before what is at hand is given up
  if (!there && there.error().code == ErrorCode::kFileNotFound)
    return fail(ErrorCode::kFileNotFound, "{}: there is no such file", path);
  if (there && !talked(*there))
    return fail(ErrorCode::kSessionMismatch, "{} holds no conversation", path);
  if (!options_.session.empty()) REPRISE_CHECK(leave_for(path));
  REPRISE_CHECK(resume(path));
  loaded_ = pack_messages(messages_);
  note_restored(path);
  return {};
}

Status Chat::undo(const std::string&) {
  const size_t before = messages_.size();
  drop_last_turn();
  if (messages_.size() < before) return forget();
  return fail(ErrorCode::kInvalidArgument, "there is no question to take back");
}

Status Chat::retry(const std::string&) {
  if (messages_.size() < 2 || messages_.back().role != "assistant")
    return fail(ErrorCode::kInvalidArgument, "there is no answer to try again");
  const Message old = messages_.back();
  messages_.pop_back();
  ++options_.sampling.seed;  // with a temperature, another answer
  const Status status = answer();
  if (!status) messages_.push_back(old);
  return status;
}

Status Chat::stats(const std::string&) {
  if (last_) console_.tell(answer_summary(*last_, conversation_.model()));
  console_.tell(fmt::format("policy {}; {} of {} tokens in use", options_.policy,
                            grouped(conversation_.session().tokens().size()),
                            grouped(conversation_.model().context)));
  return {};
}

Status Chat::policy(const std::string& spec) {
  REPRISE_CHECK(conversation_.reopen(spec));
  options_.policy = spec;
  return {};
}

Status Chat::quit(const std::string&) {
  done_ = true;
  return {};
}

class ChatCommand : public Command {
 public:
  std::string_view name() const override { return "chat"; }
  std::string_view summary() const override { return "talk with the model, turn by turn"; }
  std::string_view examples() const override {
    return R"(  reprise chat
  reprise chat --session talk.kv        goes on where the last talk ended
  reprise chat -f report.txt            talks about a document
  reprise chat --policy streaming:sink=4,window=2048
  printf 'Hello\nAnd in French?\n' | reprise chat --quiet
Inside, /help lists commands; Ctrl-C stops an answer, Ctrl-D ends.)";
  }
  void declare(FlagSet& flags) override { add_request_flags(flags, options_); }
  Status run(Console& console) override {
    REPRISE_CHECK(check_texts(options_));
    options_.engine.kv_type_of = options_.session;
    REPRISE_TRY(Conversation conversation, Conversation::open(options_, console));
    Chat chat(std::move(conversation), options_, console);
    REPRISE_CHECK(chat.start());
    return chat.run();
  }

 private:
  RequestOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_chat_command() { return std::make_unique<ChatCommand>(); }

}  // namespace reprise::cli
