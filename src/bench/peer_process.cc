#include "bench/peer_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/try.h"

namespace reprise {
namespace {

namespace fs = std::filesystem;

// The tools lie in share/ of an installation, or in the source tree that this was built from.
fs::path peer_script(std::string_view name) {
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& root :
       {self.parent_path() / "share/reprise", fs::path(REPRISE_SOURCE_DIR)}) {
    const fs::path script = root / "tools/peers" / name;
    if (fs::exists(script, ignored)) return script;
  }
  return {};
}

fs::path peer_python(const fs::path& script) {
  if (const char* python = std::getenv("REPRISE_PEER_PYTHON")) return python;
  return script.parent_path().parent_path().parent_path() / ".venv-peer/bin/python";
}

}  // namespace

struct PeerProcess::Process {
  pid_t pid = -1;
  FILE* in = nullptr;   // requests
  FILE* out = nullptr;  // answers

  ~Process() {
    if (in != nullptr) std::fclose(in);  // the end of its input ends the peer
    if (out != nullptr) std::fclose(out);
    if (pid > 0) waitpid(pid, nullptr, 0);
  }
};

PeerProcess::PeerProcess() : process_(std::make_unique<Process>()) {}
PeerProcess::PeerProcess(PeerProcess&&) noexcept = default;
PeerProcess& PeerProcess::operator=(PeerProcess&&) noexcept = default;
PeerProcess::~PeerProcess() = default;

Result<PeerProcess> PeerProcess::start(const PeerProgram& program, nlohmann::json hello) {
  const fs::path script = peer_script(program.script), python = peer_python(script);
  std::error_code ignored;
  if (script.empty() || !fs::exists(python, ignored)) {
    return fail(ErrorCode::kUnsupported, "the peer {} is not installed ({} is missing); {}",
                program.name,
                script.empty() ? fmt::format("tools/peers/{}", program.script) : python.string(),
                program.install);
  }
  std::array<int, 2> to_peer, from_peer;
  if (pipe2(to_peer.data(), O_CLOEXEC) != 0 || pipe2(from_peer.data(), O_CLOEXEC) != 0) {
    return fail(ErrorCode::kUnsupported, "cannot start the peer: no pipe");
  }
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(to_peer[0], STDIN_FILENO);
    dup2(from_peer[1], STDOUT_FILENO);
    execl(python.c_str(), python.c_str(), script.c_str(), nullptr);
    _exit(127);
  }
  close(to_peer[0]);
  close(from_peer[1]);
  PeerProcess peer;
  peer.process_->pid = pid;
  peer.process_->in = fdopen(to_peer[1], "w");
  peer.process_->out = fdopen(from_peer[0], "r");
  signal(SIGPIPE, SIG_IGN);  // a peer that died is reported by its missing answer
  hello["op"] = "start";
  REPRISE_TRY(const nlohmann::json answer, peer.ask(hello));
  REPRISE_TRY(peer.version_, field<std::string>(answer, "version"));
  REPRISE_TRY(peer.settings_, field<std::vector<std::string>>(answer, "settings"));
  if (peer.settings_.empty()) return fail(ErrorCode::kUnsupported, "the peer has no settings");
  return peer;
}

Result<nlohmann::json> PeerProcess::ask(const nlohmann::json& request) {
  const std::string line = request.dump() + "\n";
  char* answer = nullptr;
  size_t capacity = 0;
  const bool sent = std::fwrite(line.data(), 1, line.size(), process_->in) == line.size() &&
                    std::fflush(process_->in) == 0;
  const ssize_t length = sent ? getline(&answer, &capacity, process_->out) : -1;
  const std::unique_ptr<char, decltype(&std::free)> owner(answer, &std::free);
  if (length <= 0) {
    return fail(ErrorCode::kUnsupported, "the peer ended during \"{}\"; its messages are above",
                request.value("op", ""));
  }
  auto parsed = nlohmann::json::parse(answer, answer + length, nullptr, false);
  if (!parsed.is_object()) return fail(ErrorCode::kBadJson, "the peer answered: {}", answer);
  if (parsed.contains("error")) {
    return fail(ErrorCode::kUnsupported, "peer: {}", parsed["error"].dump());
  }
  return parsed;
}

}  // namespace reprise
