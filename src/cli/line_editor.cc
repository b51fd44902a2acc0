#include "cli/line_editor.h"

#include <histedit.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cwchar>
#include <filesystem>
#include <string_view>

#include "cli/interrupt.h"
#include "cli/standard_error.h"

namespace reprise::cli {
namespace {

constexpr int kHistorySize = 1000;

const char* prompt(EditLine*) { return "> "; }

// With vi's keys the mark would make ESC wait for more; without editing it would be text.
bool takes_pastes(EditLine* editor) {
  const char* keys = nullptr;
  int editing = 0;
  return el_get(editor, EL_EDITOR, &keys) == 0 && std::string_view(keys) == "emacs" &&
         el_get(editor, EL_EDITMODE, &editing) == 0 && editing != 0;
}

// Asks the terminal to enclose what is pasted, so that its line breaks end no line.
void mark_pastes(EditLine* editor, bool on) {
  if (!terminal_obeys_escapes() || (on && !takes_pastes(editor))) return;
  std::fputs(on ? "\x1b[?2004h" : "\x1b[?2004l", stdout);
  std::fflush(stdout);
}

// Takes a new size of the window over. The editor would go on from a cursor of the old one.
void follow_window(EditLine* editor) {
  winsize size = {};
  int columns = 0, lines = 0;
  std::array<char, 3> co = {"co"}, li = {"li"};
  if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2 || size.ws_row < 1 ||
      el_get(editor, EL_GETTC, co.data(), &columns) != 0 ||
      el_get(editor, EL_GETTC, li.data(), &lines) != 0 ||
      (size.ws_col == columns && size.ws_row == lines))
    return;
  el_resize(editor);
  std::fputc('\r', stdout);
  el_set(editor, EL_REFRESH);
}

// Ctrl-Z: the shell gets its terminal back as it was; when it goes on, the line is there again.
void suspend(EditLine* editor) {
  mark_pastes(editor, false);
  el_set(editor, EL_PREP_TERM, 0);
  catch_suspension(false);
  std::raise(SIGTSTP);
  catch_suspension(true);
  el_set(editor, EL_PREP_TERM, 1);
  mark_pastes(editor, true);
  el_set(editor, EL_REFRESH);
}

// The next character of the terminal: 1, 0 at its end, -1 where it was interrupted. The editor's
// own reader misses a signal that comes before it waits.
int read_character(EditLine* editor, wchar_t* character) {
  const Input* input = nullptr;
  el_get(editor, EL_CLIENTDATA, &input);
  std::mbstate_t state = {};
  while (true) {
    char byte = 0;
    const ssize_t got = input->read({&byte, 1});
    if (got < 0 && !interrupted() && take_suspension()) {
      suspend(editor);
      continue;
    }
    if (got <= 0) return static_cast<int>(got);
    const size_t length = std::mbrtowc(character, &byte, 1, &state);
    if (length <= 1) {
      follow_window(editor);
      return 1;
    }
    if (length == static_cast<size_t>(-1)) state = {};  // no text: left out
  }
}

// After the mark that begins a paste: its text, up to the mark that ends it.
unsigned char paste(EditLine* editor, wint_t) {
  constexpr std::wstring_view kEnd = L"\x1b[201~";
  std::wstring text;
  wchar_t broken_by = 0;  // the character before, where it broke a line
  while (!text.ends_with(kEnd)) {
    wchar_t character = 0;
    if (el_wgetc(editor, &character) != 1) return CC_EOF;
    if (character == L'\0') continue;
    const bool breaks = character == L'\r' || character == L'\n';
    const bool second = breaks && broken_by != 0 && broken_by != character;  // of "\r\n"
    if (!second) text += breaks ? L'\n' : character;  // the terminal may have swapped the two
    broken_by = breaks && !second ? character : 0;
  }
  text.resize(text.size() - kEnd.size());
  text.resize(text.find_last_not_of(L'\n') + 1);
  return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
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
    el_set(editor, EL_ADDFN, "paste", "insert what is pasted", &paste);
    HistEvent event;
    ::history(entries, &event, H_SETSIZE, kHistorySize);
    ::history(entries, &event, H_SETUNIQUE, 1);
    ::history(entries, &event, H_LOAD, history_file.c_str());
    el_set(editor, EL_HIST, &::history, entries);
    el_source(editor, nullptr);  // the user's own ~/.editrc, which may drop all keys bound before
    if (takes_pastes(editor)) el_set(editor, EL_BIND, "\\e[200~", "paste", nullptr);
  }
  ~Terminal() {
    keep_history();
    ::history_end(entries);
    el_end(editor);
  }
  void keep_history() const {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(history_file).parent_path(), ignored);
    HistEvent event;
    ::history(entries, &event, H_SAVE, history_file.c_str());
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

void LineEditor::keep_history() const {
  if (terminal_) terminal_->keep_history();
}

void LineEditor::finish() { terminal_.reset(); }

bool LineEditor::interactive() const { return terminal_ != nullptr; }

LineEditor::Event LineEditor::read_pipe(std::string& line) {
  std::array<char, 1 << 16> buffer;
  size_t searched = 0, end = 0;
  while ((end = ahead_.find('\n', searched)) == std::string::npos) {
    searched = ahead_.size();
    const ssize_t got = input_.read(buffer);
    if (got > 0) {
      ahead_.append(buffer.data(), static_cast<size_t>(got));
    } else if (got < 0 && errno != EINTR) {
      return Event::kFailed;
    } else if (got < 0 || ahead_.empty()) {
      return interrupted() ? Event::kInterrupt : Event::kEnd;
    } else {
      end = ahead_.size();  // the last line may lack its newline
      break;
    }
  }
  line = ahead_.substr(0, end);
  if (line.ends_with('\r')) line.pop_back();  // of a file that was written on Windows
  ahead_.erase(0, end + 1);
  return Event::kLine;
}

LineEditor::Event LineEditor::read(std::string& line) {
  line.clear();
  if (terminal_ == nullptr) return read_pipe(line);
  int length = 0;
  catch_suspension(true);
  mark_pastes(terminal_->editor, true);
  const char* text = el_gets(terminal_->editor, &length);
  mark_pastes(terminal_->editor, false);
  catch_suspension(false);
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
  return Event::kLine;
}

}  // namespace reprise::cli
