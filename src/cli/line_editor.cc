#include "cli/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cwchar>
#include <filesystem>

#include "cli/interrupt.h"

namespace reprise::cli {
namespace {

constexpr int kHistorySize = 1000;

const char* prompt(EditLine*) { return "> "; }

// The next character of the terminal: 1, 0 at its end, -1 where it was interrupted. The editor's
// own reader misses a signal that comes before it waits.
int read_character(EditLine* editor, wchar_t* character) {
  const Input* input = nullptr;
  el_get(editor, EL_CLIENTDATA, &input);
  std::mbstate_t state = {};
  while (true) {
    char byte = 0;
    const ssize_t got = input->read({&byte, 1});
    if (got <= 0) return static_cast<int>(got);
    const size_t length = std::mbrtowc(character, &byte, 1, &state);
    if (length <= 1) return 1;
    if (length == static_cast<size_t>(-1)) state = {};  // no text: left out
  }
}

}  // namespace

struct LineEditor::Terminal {
  Terminal(const Input* input, std::string file) : history_file(std::move(file)) {
    el_set(editor, EL_PROMPT, &prompt);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_SIGNAL, 0);
    el_set(editor, EL_CLIENTDATA, input);
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
    terminal_ = std::make_unique<Terminal>(&input_, history_file);
}

LineEditor::~LineEditor() = default;

bool LineEditor::interactive() const { return terminal_ != nullptr; }

bool LineEditor::read_pipe(std::string& line) {
  std::array<char, 1 << 16> buffer;
  size_t searched = 0, end = 0;
  while ((end = ahead_.find('\n', searched)) == std::string::npos) {
    searched = ahead_.size();
    const ssize_t got = input_.read(buffer);
    if (got > 0) {
      ahead_.append(buffer.data(), static_cast<size_t>(got));
    } else if (got < 0 || ahead_.empty()) {
      return false;
    } else {
      end = ahead_.size();  // the last line may lack its newline
      break;
    }
  }
  line = ahead_.substr(0, end);
  if (line.ends_with('\r')) line.pop_back();  // of a file that was written on Windows
  ahead_.erase(0, end + 1);
  return true;
}

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
    if (line.back() == '\n') line.pop_back();
    HistEvent event;
    if (!line.empty()) ::history(terminal_->entries, &event, H_ENTER, text);
  }
  return Event::kLine;
}

}  // namespace reprise::cli
