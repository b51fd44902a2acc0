#include "cli/console.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/try.h"
#include "cli/interrupt.h"
#include "cli/standard_error.h"
#include "cli/text.h"

namespace reprise::cli {
namespace {

constexpr int kFailure = 1, kUsage = 2;

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnknownOption:
    case ErrorCode::kUnknownPolicy:
      return kUsage;
    case ErrorCode::kCancelled:
      return interrupt_exit_code();
    default:
      return kFailure;
  }
}

}  // namespace

Console::Console(bool json, bool quiet) : json_(json), quiet_(quiet), bar_(quiet) {}

Status Console::print(std::string_view text) {
  bar_.finish();
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
    return {};
  if (errno == EPIPE) {
    reader_gone_ = true;
    return fail(ErrorCode::kCancelled, "the reader of standard output is gone");
  }
  return fail(ErrorCode::kFileUnwritable, "cannot write to standard output: {}",
              std::strerror(errno));
}

Status Console::print_json(const nlohmann::ordered_json& value) {
  using nlohmann::ordered_json;
  printed_json_ = true;
  return print(value.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

void Console::note(std::string_view text) {
  bar_.finish();
  if (!quiet_) tell(text);
}

void Console::tell(std::string_view text) {
  bar_.finish();
  write_error(escaped(text) + "\n");
}

void Console::warn(std::string_view text) {
  bar_.finish();
  write_error(fmt::format("reprise: {}\n", escaped(text)));
}

void Console::partly_failed(std::string_view text) {
  warn(text);
  exit_code_ = kFailure;
}

ProgressFn Console::progress() {
  return [this](const Progress& progress) {
    bar_.update(progress);
    return !interrupted();
  };
}

Status Console::reached(const Progress& progress) {
  if (this->progress()(progress)) return {};
  return fail(ErrorCode::kCancelled, "interrupted after {}", progress.stage);
}

void Console::stopped() {
  bar_.finish();
  stopped_at_ = state();  // what is saved from then on has stages of its own
  end_after_interrupt();
  exit_code_ = interrupt_exit_code();
}

std::string Console::message_of(const Error& error) const {
  if (error.code != ErrorCode::kCancelled) return error.message;
  const std::string where = stopped_at_.empty() ? state() : stopped_at_;
  return where.empty() ? "stopped" : fmt::format("stopped while {}", where);
}

nlohmann::ordered_json Console::error_json(const Error& error) const {
  return {{"code", error_name(error.code)}, {"message", message_of(error)}};
}

int Console::report(const Error& error) {
  warn(message_of(error));
  if (json_ && !printed_json_) static_cast<void>(print_json({{"error", error_json(error)}}));
  return exit_code_of(error.code);
}

int Console::finish(const Status& status) {
  bar_.finish();
  if (reader_gone_) return kFailure;
  if (!status) return report(status.error());
  return exit_code_;
}

}  // namespace reprise::cli
