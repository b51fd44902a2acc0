#include "cli/conversation.h"

#include <utility>

#include "base/try.h"
#include "cli/interrupt.h"

namespace reprise::cli {

Result<Conversation> Conversation::open(const RequestOptions& options, Console& console) {
  if (!options.session.empty()) REPRISE_CHECK(check_writable(options.session));
  REPRISE_TRY(auto engine, Engine::load(options.engine, console.progress()));
  console.end_progress();
  REPRISE_TRY(auto session, engine->open(options.policy));
  return Conversation(std::move(engine), std::move(session), console);
}

Result<std::vector<Message>> Conversation::restore(const std::string& path) {
  auto note = session_->restore(path, console_->progress());
  console_->end_progress();
  if (note) return unpack_messages(*note);
  const Error& error = note.error();
  if (error.code == ErrorCode::kCancelled) return tl::unexpected(error);
  if (error.code != ErrorCode::kFileNotFound)
    console_->warn(fmt::format("{}; everything is read again", error.message));
  return std::vector<Message>();
}

Status Conversation::save(const std::string& path, const std::vector<Message>& messages) {
  if (session_->tokens().empty()) return {};
  const Status status = session_->save(path, pack_messages(messages), console_->progress());
  console_->end_progress();
  return status;
}

Status Conversation::reopen(const std::string& policy) {
  REPRISE_TRY(session_, engine_->open(policy));
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
