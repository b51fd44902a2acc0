#include "cli/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <filesystem>

#include "cli/interrupt.h"

namespace reprise::cli {
namespace {

constexpr int kHistorySize = 1000;

const char* prompt(EditLine*) { return "> "; }

// The next character of the terminal: 1, 0 at its end, -1 where it was interrupted. The editor's
// own reader misses a signal that comes before it waits.
int read_character(EditLine*, wchar_t* character) {
  std::mbstate_t state = {};
  while (wait_for_input(STDIN_FILENO)) {
    char byte = 0;
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got <= 0) return static_cast<int>(got);
    const size_t length = std::mbrtowc(character, &byte, 1, &state);
    if (length <= 1) return 1;
    if (length == static_cast<size_t>(-1)) state = {};  // no text: left out
  }
  return -1;
}

bool read_pipe(std::string& line) {
  char* buffer = nullptr;
  size_t capacity = 0;
  const ssize_t length = ::getline(&buffer, &capacity, stdin);
  if (length >= 0) line.assign(buffer, static_cast<size_t>(length));
  std::free(buffer);
  return length >= 0;
}

}  // namespace

struct LineEditor::Terminal {
  explicit Terminal(std::string file) : history_file(std::move(file)) {
    el_set(editor, EL_PROMPT, &prompt);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_SIGNAL, 0);
    el_set(editor, EL_GETCFN, &read_character);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    HistEvent event;
    ::history(entries, &event, H_SETSIZE, kHistorySize);
    ::history(entries, &event, H_SETUNIQUE, 1);
    ::history(entries, &event, H_LOAD, history_file.c_str());
    el_set(editor, EL_HIST, &::history, entries);
    el_source(editor, nullptr);  // the user's own ~/.editrc
  }
  ~Terminal() {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(history_file).parent_path(), ignored);
    HistEvent event;
    ::history(entries, &event, H_SAVE, history_file.c_str());
    ::history_end(entries);
    el_end(editor);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  std::string history_file;
  EditLine* editor = el_init("reprise", stdin, stdout, stderr);
  History* entries = ::history_init();
};

LineEditor::LineEditor(const std::string& history_file) {
  if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0)
    terminal_ = std::make_unique<Terminal>(history_file);
}

LineEditor::~LineEditor() = default;

bool LineEditor::interactive() const { return terminal_ != nullptr; }

LineEditor::Event LineEditor::read(std::string& line) {
  line.clear();
  if (terminal_ == nullptr) {
    if (!read_pipe(line)) return interrupted() ? Event::kInterrupt : Event::kEnd;
  } else {
    int length = 0;
    const char* text = el_gets(terminal_->editor, &length);
    if (interrupted()) {
      acknowledge_interrupt();
      el_reset(terminal_->editor);
      std::fputc('\n', stdout);
      return Event::kInterrupt;
    }
    if (text == nullptr || length <= 0) {
      std::fputc('\n', stdout);
      return Event::kEnd;
    }
    line.assign(text, static_cast<size_t>(length));
    HistEvent event;
    if (line != "\n") ::history(terminal_->entries, &event, H_ENTER, text);
  }
  if (!line.empty() && line.back() == '\n') line.pop_back();
  return Event::kLine;
}

}  // namespace reprise::cli
