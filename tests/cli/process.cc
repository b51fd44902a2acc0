#include "cli/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace reprise::test {
namespace {

namespace fs = std::filesystem;

constexpr auto kPatience = std::chrono::minutes(15);  // sanitizers on a small machine

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// Clean but for what the loader and sanitizers need; no user configuration.
std::vector<std::string> environment(const Launch& launch) {
  std::map<std::string, std::string> merged = {{"LC_ALL", "C.UTF-8"}, {"HOME", "/nonexistent"}};
  for (const char* name :
       {"PATH", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS", "TMPDIR"})
    if (const std::string value = variable(name); !value.empty()) merged[name] = value;
  if (launch.terminal) merged["TERM"] = "xterm";
  for (const auto& [name, value] : launch.env) merged[name] = value;
  std::vector<std::string> list;
  for (const auto& [name, value] : merged) list.push_back(name + "=" + value);
  return list;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// A file rather than a pipe: the program may end without reading it.
int input_file(const std::string& content) {
  std::FILE* file = std::tmpfile();
  std::fwrite(content.data(), 1, content.size(), file);
  std::rewind(file);
  const int copy = dup(fileno(file));
  std::fclose(file);
  return copy;
}

struct Ends {
  int here = -1, there = -1;  // the test's, the program's
};

Ends terminal_ends() {
  Ends ends;
  EXPECT_EQ(openpty(&ends.here, &ends.there, nullptr, nullptr, nullptr), 0);
  for (const int end : {ends.here, ends.there}) EXPECT_EQ(fcntl(end, F_SETFD, FD_CLOEXEC), 0);
  return ends;
}

Ends pipe_ends() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  return {ends[0], ends[1]};
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const Launch& launch) {
  std::vector<std::string> words{launch.program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment(launch);
  const std::vector<char*> argv = pointers(words), envp = pointers(variables);
  const int input = input_file(launch.input);
  const Ends out = launch.terminal ? terminal_ends() : pipe_ends();
  const Ends err = launch.terminal ? Ends() : pipe_ends();
  pid_ = fork();
  if (pid_ == 0) {
    if (launch.terminal) {
      login_tty(out.there);  // of a session of its own, so that Ctrl-C reaches the program
    } else {
      dup2(input, STDIN_FILENO);
      dup2(out.there, STDOUT_FILENO);
      dup2(err.there, STDERR_FILENO);
    }
    if (launch.close_input) close(STDIN_FILENO);
    if (launch.close_output) close(STDOUT_FILENO);
    if (launch.pending_interrupt) {  // stays pending over exec until the program lets it in
      sigset_t set;
      sigemptyset(&set);
      sigaddset(&set, SIGINT);
      sigprocmask(SIG_BLOCK, &set, nullptr);
      raise(SIGINT);
    }
    ::signal(SIGHUP, SIG_DFL);  // tests may run under nohup
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(input);
  close(out.there);
  if (err.there >= 0) close(err.there);
  out_ = out.here;
  err_ = err.here;
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close_output();
  if (err_ >= 0) close(err_);
}

void Process::resize(uint16_t columns) {
  const winsize size = {.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(out_, TIOCSWINSZ, &size), 0);
}

void Process::close_output() {
  if (out_ >= 0) close(out_);
  out_ = -1;
}

void Process::interrupt() { signal(SIGINT); }

void Process::signal(int number) { kill(pid_, number); }

void Process::wait_until_stuck() {
  ASSERT_GT(fcntl(out_, F_SETPIPE_SZ, 4096), 0) << "all of it is read";
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  int unread = 0, before = -1;
  while (unread == 0 || unread != before) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit) << "the program writes nothing";
    before = unread;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ASSERT_EQ(ioctl(out_, FIONREAD, &unread), 0);
  }
}

bool Process::wait_for_reading() {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  termios settings = {};
  while (tcgetattr(out_, &settings) == 0 && (settings.c_lflag & ICANON) != 0) {
    if (std::chrono::steady_clock::now() > limit) kill(pid_, SIGKILL);
    pump(10);
  }
  return out_ >= 0;
}

void Process::type(const std::string& keys) {
  EXPECT_EQ(write(out_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

bool Process::pump(int timeout_ms) {
  std::array<pollfd, 2> ends = {{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};  // poll skips negatives
  if (poll(ends.data(), ends.size(), timeout_ms) < 0) return false;
  std::array<char, 65536> buffer{};
  const auto drain = [&](int& end, short events, std::string& into) {
    if (end < 0 || events == 0) return;
    const ssize_t got = read(end, buffer.data(), buffer.size());
    if (got > 0) {
      into.append(buffer.data(), static_cast<size_t>(got));
    } else {
      close(end);
      end = -1;
    }
  };
  drain(out_, ends[0].revents, outcome_.out);
  drain(err_, ends[1].revents, outcome_.err);
  return out_ >= 0 || err_ >= 0;
}

bool Process::wait_for(const std::string& stream, size_t& seen, const std::string& text) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  bool open = true;
  size_t at = 0;
  while ((at = stream.find(text, seen)) == std::string::npos) {
    if (!open) return false;
    if (std::chrono::steady_clock::now() > limit) kill(pid_, SIGKILL);  // nor wait for more
    open = pump(100);
  }
  seen = at + text.size();
  return true;
}

bool Process::wait_for_output(const std::string& text) {
  return wait_for(outcome_.out, out_seen_, text);
}
bool Process::wait_for_errors(const std::string& text) {
  return wait_for(outcome_.err, err_seen_, text);
}

Outcome Process::finish() {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (pump(1000)) {
    if (std::chrono::steady_clock::now() > limit) {
      ADD_FAILURE() << "the program hangs; it said: " << outcome_.err;
      kill(pid_, SIGKILL);
      break;
    }
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  outcome_.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return outcome_;
}

Outcome run(const std::vector<std::string>& arguments, const Launch& launch) {
  return Process(arguments, launch).finish();
}

std::optional<std::string> real_model() {
  std::string path = variable("REPRISE_MODEL");
  if (path.empty()) {
    std::string cache = variable("XDG_CACHE_HOME");
    if (cache.empty()) cache = variable("HOME") + "/.cache";
    path = cache + "/reprise/SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  return fs::exists(path) ? std::optional(path) : std::nullopt;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "reprise-test-XXXXXX").string();
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& content) const {
  const std::string path = file(name);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

}  // namespace reprise::test
