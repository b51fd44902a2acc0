// A session with its model, as run and chat use it: restore, answer while streaming, save.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/console.h"
#include "cli/request_flags.h"
#include "reprise/engine.h"

namespace reprise::cli {

class Conversation {
 public:
  /// Loads the model and opens a session. A path to save to is checked before that, and that the
  /// policy's sessions can be saved.
  static Result<Conversation> open(const RequestOptions& options, Console& console);

  Conversation(Conversation&&) = default;
  Conversation& operator=(Conversation&&) = delete;  // would end the engine before its session

  Engine& engine() { return *engine_; }
  const ModelInfo& model() const { return engine_->info(); }
  const Session& session() const { return *session_; }
  Session& session() { return *session_; }

  /// Takes up what a session file holds. A file that is absent or cannot be used leaves the
  /// conversation empty, with a remark; kCancelled on Ctrl-C. Whether it may be replaced: one that
  /// other settings left may not.
  Result<bool> restore(const std::string& path);
  /// The same, and returns its messages, also those of a file whose KV cannot be used. Where they
  /// cannot be read either the error is returned: the file should not be replaced.
  Result<std::vector<Message>> resume(const std::string& path);
  /// Writes tokens, KV and messages.
  Status save(const std::string& path, const std::vector<Message>& messages);
  /// Starts again with another policy. Errors: those of Engine::open; kInvalidArgument when its
  /// sessions cannot be saved and this one is to be.
  Status reopen(const std::string& policy);

  /// Reads a prompt and answers nothing.
  Result<Answer> read(std::vector<int32_t> prompt);
  /// Streams the answer to the prompt unless the output is JSON. On Ctrl-C the answer so far is
  /// returned with kCancelled as its end, or, before the first token, the error kCancelled.
  Result<Answer> answer(std::vector<int32_t> prompt, const RequestOptions& options);

 private:
  Conversation(std::unique_ptr<Engine> engine, std::unique_ptr<Session> session, bool kept,
               Console& console)
      : engine_(std::move(engine)), session_(std::move(session)), kept_(kept), console_(&console) {}
  Result<std::string> restore_note(const std::string& path);

  std::unique_ptr<Engine> engine_;  // outlives the session
  std::unique_ptr<Session> session_;
  bool kept_;  // in a file, at the end
  Console* console_;
};

}  // namespace reprise::cli
