#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/standard_error.h"
#include "cli/text.h"

namespace reprise::cli {
namespace {

using namespace std::chrono_literals;

constexpr auto kRedraw = 100ms;  // terminal
constexpr auto kFirstLine = 1s;  // elsewhere: work shorter than this says nothing
constexpr auto kNextLine = 2s;

std::string stage_text(std::string_view stage) {
  constexpr std::pair<std::string_view, std::string_view> kTexts[] = {
      {"load", "loading the model"},
      {"tokenize", "cutting the text into tokens"},
      {"prefill", "reading the prompt"},
      {"save", "saving the session"},
      {"restore", "restoring the session"},
      {"bench", "measuring"},
      {"measure", "measuring what the policy keeps"},
      {"eval", "evaluating"},
      {"index", "making the index"},
      {"choose", "choosing rows"},
      {"record", "recording attention"},
      {"train", "training"},
      {"store", "adding to the store"},
      {"upload", "loading the model"},
      {"compare", "comparing"},
  };
  for (const auto& [name, text] : kTexts)
    if (name == stage) return std::string(text);
  return std::string(stage);
}

int terminal_columns() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string amount(uint64_t count, std::string_view unit) {
  return unit == "bytes" ? bytes_text(count) : grouped(count);
}

}  // namespace

ProgressBar::ProgressBar(bool silent)
    : mode_(silent                                                   ? Mode::kSilent
            : isatty(STDERR_FILENO) != 0 && terminal_obeys_escapes() ? Mode::kTerminal
                                                                     : Mode::kLines) {}

void ProgressBar::start(const Progress& progress) {
  finish();
  stage_ = progress.stage;
  unit_ = progress.unit;
  first_ = progress.done;
  started_ = shown_ = Clock::now();
  active_ = true;
  printed_ = false;
}

void ProgressBar::update(const Progress& progress) {
  if (!active_ || stage_ != progress.stage) start(progress);
  done_ = progress.done;
  total_ = progress.total;
  if (mode_ == Mode::kSilent) return;
  const auto now = Clock::now();
  const bool terminal = mode_ == Mode::kTerminal;
  const auto wait = terminal   ? Clock::duration(kRedraw)
                    : printed_ ? Clock::duration(kNextLine)
                               : Clock::duration(kFirstLine);
  if (now - shown_ < wait) return;
  shown_ = now;
  printed_ = true;
  if (terminal) {
    draw();
  } else {
    write_error(line() + "\n");
  }
}

std::string ProgressBar::state() const {
  if (stage_.empty()) return {};
  return fmt::format("{}: {} of {}{}", stage_text(stage_), amount(done_, unit_),
                     amount(total_, unit_), unit_ == "bytes" ? "" : " " + unit_);
}

std::string ProgressBar::line() const {
  const double seconds = std::chrono::duration<double>(Clock::now() - started_).count();
  const double rate = seconds > 0 ? static_cast<double>(done_ - first_) / seconds : 0;
  std::string text = state();
  if (rate > 0) {
    const double left = static_cast<double>(total_ - std::min(done_, total_)) / rate;
    if (rate >= 1) text += fmt::format(", {}/s", amount(static_cast<uint64_t>(rate), unit_));
    text += fmt::format(", {:.0f} s left", left);
  }
  return text;
}

void ProgressBar::draw() const {
  constexpr int kPercent = 10, kWidest = 24, kNarrowest = 4;  // columns
  const std::string text = line();
  const int width = std::clamp(terminal_columns() - kPercent - static_cast<int>(text.size()),
                               kNarrowest, kWidest);
  const double part = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 0;
  const int filled = static_cast<int>(std::clamp(part, 0.0, 1.0) * width);
  std::string bar = fmt::format("[{:=<{}}{: <{}}] {:3.0f} % {}", "", filled, "", width - filled,
                                100 * part, text);
  bar.resize(std::min(bar.size(), static_cast<size_t>(terminal_columns() - 1)));
  write_error(fmt::format("\r{}\x1b[K", bar));
}

void ProgressBar::finish() {
  if (active_ && printed_ && mode_ == Mode::kTerminal) write_error("\r\x1b[K");
  if (active_ && printed_ && mode_ == Mode::kLines && done_ == total_)
    write_error(fmt::format("{}: done\n", stage_text(stage_)));
  active_ = false;
}

}  // namespace reprise::cli
