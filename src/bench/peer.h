// Another engine in a child process, measured in turns with ours.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "reprise/error.h"

namespace reprise {

/// Talks to tools/peers/llama_cpp_peer.py: one JSON object per line in each direction. While it is
/// not asked for anything the peer sleeps.
class Peer {
 public:
  struct Settings {
    std::string model;
    uint32_t threads = 0;
    uint32_t context = 0;  ///< largest context of the run, in tokens
  };
  /// Starts the peer with the Python of its own environment: REPRISE_PEER_PYTHON, or .venv-peer
  /// beside the tools. kUnsupported says how to install it.
  static Result<Peer> start(const Settings& settings);
  Peer(Peer&&) noexcept;
  Peer& operator=(Peer&&) noexcept;
  ~Peer();

  /// The peer's version and its settings to compare, e.g. "fa=0", "fa=1".
  const std::string& version() const { return version_; }
  std::span<const std::string> settings() const { return settings_; }

  /// Milliseconds to read tokens from an empty cache.
  Result<double> prefill(size_t setting, std::span<const int32_t> tokens);
  /// Makes the cache hold tokens (untimed; what it holds already is not read again).
  Status fill(size_t setting, std::span<const int32_t> tokens);
  /// Milliseconds of each of n greedy decode steps after the filled context, which is then
  /// restored.
  Result<std::vector<double>> decode(size_t setting, uint32_t n);

 private:
  struct Process;
  Peer();
  Result<nlohmann::json> ask(const nlohmann::json& request);

  std::unique_ptr<Process> process_;
  std::string version_;
  std::vector<std::string> settings_;
};

}  // namespace reprise
