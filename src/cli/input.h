// What a person or a program sends: reading it waits, and Ctrl-C ends the wait.
#pragma once

#include <span>
#include <string>

namespace reprise::cli {

/// A file, pipe or terminal to read. Unbuffered, so that it shares a terminal with a line editor.
class Input {
 public:
  /// Standard input; it stays open afterwards.
  static Input standard();
  /// A file of this path; is_open() is false, with errno set, where it cannot be read. A pipe that
  /// nobody writes yet does not keep the caller.
  static Input open(const std::string& path);
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  bool is_open() const { return file_ >= 0; }
  /// Bytes read, at least one; 0 at the end, -1 with errno set: not readable, EINTR: interrupted,
  /// be it just before the call.
  ssize_t read(std::span<char> buffer) const;

 private:
  Input(int file, bool owned) : file_(file), owned_(owned) {}

  int file_;
  bool owned_;
};

}  // namespace reprise::cli
