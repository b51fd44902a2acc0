#include "cli/conversation.h"

#include <utility>

#include "base/try.h"
#include "cli/interrupt.h"
#include "cli/session_messages.h"
#include "engine/engine_impl.h"

namespace reprise::cli {
namespace {

// kept: it is to be saved to a file, which does not suit every policy.
Result<std::unique_ptr<Session>> open_session(Engine& engine, const std::string& policy,
                                              bool kept) {
  REPRISE_TRY(auto session, engine.open(policy));
  if (!kept || session->impl().sequence.policy->rebuilds()) return session;
  return fail(
      ErrorCode::kInvalidArgument,
      "--session: policy {} keeps what a session file does not hold; leave the file out, or "
      "take another policy",
      policy);
}

}  // namespace

Result<Conversation> Conversation::open(const RequestOptions& options, Console& console) {
  const bool kept = !options.session.empty();
  if (kept) REPRISE_CHECK(check_session_path("--session", options.session));
  REPRISE_TRY(auto engine, Engine::load(options.engine, console.progress()));
  console.end_progress();
  REPRISE_TRY(auto session, open_session(*engine, options.policy, kept));
  return Conversation(std::move(engine), std::move(session), kept, console);
}

Result<std::string> Conversation::restore_note(const std::string& path) {
  if (is_empty_file(path)) return fail(ErrorCode::kFileNotFound, "{} is empty", path);
  auto note = session_->restore(path, console_->progress());
  console_->end_progress();
  return note;
}

Result<bool> Conversation::restore(const std::string& path) {
  const auto note = restore_note(path);
  if (note || note.error().code == ErrorCode::kFileNotFound) return true;
  if (note.error().code == ErrorCode::kCancelled) return tl::unexpected(note.error());
  const bool stays = note.error().code == ErrorCode::kSessionMismatch;
  console_->warn(fmt::format("{}; everything is read again{}", note.error().message,
                             stays ? " and not saved, the file stays as it is" : ""));
  return !stays;
}

Result<std::vector<Message>> Conversation::resume(const std::string& path) {
  const auto note = restore_note(path);
  if (note) return unpack_messages(*note);
  const Error& error = note.error();
  if (error.code == ErrorCode::kFileNotFound) return std::vector<Message>();
  if (error.code == ErrorCode::kCancelled) return tl::unexpected(error);
  auto messages = read_messages(path);
  if (!messages) {
    return fail(error.code, "{}; its messages cannot be read either, and it is left as it is",
                error.message);
  }
  console_->warn(fmt::format("{}; everything is read again", error.message));
  REPRISE_CHECK(reopen(session_->impl().policy_spec));  // what was read before is another talk's
  return messages;
}

Status Conversation::save(const std::string& path, const std::vector<Message>& messages) {
  const Status status = session_->save(path, pack_messages(messages), console_->progress());
  console_->end_progress();
  return status;
}

Status Conversation::reopen(const std::string& policy) {
  REPRISE_TRY(session_, open_session(*engine_, policy, kept_));
  return {};
}

Result<Answer> Conversation::read(std::vector<int32_t> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = 1;  // which the last row gives
  request.on_progress = console_->progress();
  auto answer = session_->generate(request);
  console_->end_progress();
  return answer;
}

Result<Answer> Conversation::answer(std::vector<int32_t> prompt, const RequestOptions& options) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = options.max_tokens;
  request.stop = options.stop;
  request.sampling = options.sampling;
  request.on_progress = console_->progress();
  Status output;
  bool ends_line = true;
  if (!console_->json()) {
    request.on_token = [&](const TokenEvent& event) {
      if (!event.text.empty()) {
        output = console_->print(event.text);
        ends_line = event.text.back() == '\n';
      }
      return output && !interrupted();
    };
  } else {
    request.on_token = [](const TokenEvent&) { return !interrupted(); };
  }
  auto answer = session_->generate(request);
  console_->end_progress();
  if (output && !ends_line) output = console_->print("\n");
  if (!output) return tl::unexpected(output.error());
  return answer;
}

}  // namespace reprise::cli
