// A program in another process that is measured in turns with ours.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reprise/error.h"

namespace reprise {

/// A script of tools/peers. It reads one JSON object per line and answers each with one. Asked to
/// "start" it says its version and the settings to compare; while it is not asked for anything it
/// sleeps.
struct PeerProgram {
  std::string_view name;     ///< as --peer takes it
  std::string_view script;   ///< in tools/peers
  std::string_view install;  ///< how its packages are installed
};

class PeerProcess {
 public:
  /// Starts the script with the Python of its own environment: REPRISE_PEER_PYTHON, or .venv-peer
  /// beside the tools. hello: the fields of the first request. kUnsupported says how to install it.
  static Result<PeerProcess> start(const PeerProgram& program, nlohmann::json hello);
  PeerProcess(PeerProcess&&) noexcept;
  PeerProcess& operator=(PeerProcess&&) noexcept;
  ~PeerProcess();

  /// The peer's version and its settings to compare, e.g. "fa=0", "fa=1".
  const std::string& version() const { return version_; }
  std::span<const std::string> settings() const { return settings_; }

  /// kUnsupported with the peer's own words when it failed.
  Result<nlohmann::json> ask(const nlohmann::json& request);
  /// A field of an answer; kBadJson when it is missing or of another type.
  template <class T>
  static Result<T> field(const nlohmann::json& answer, const char* name) {
    try {
      return answer.at(name).get<T>();
    } catch (const nlohmann::json::exception&) {
      return fail(ErrorCode::kBadJson, "the peer's answer has no proper \"{}\": {}", name,
                  answer.dump());
    }
  }

 private:
  struct Process;
  PeerProcess();

  std::unique_ptr<Process> process_;
  std::string version_;
  std::vector<std::string> settings_;
};

}  // namespace reprise
