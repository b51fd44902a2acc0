// Another engine, measured in turns with ours.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/peer_process.h"

namespace reprise {

/// llama.cpp, by way of tools/peers/llama_cpp_peer.py.
class EnginePeer {
 public:
  struct Settings {
    std::string model;
    uint32_t threads = 0;
    uint32_t context = 0;  ///< largest context of the run, in tokens
    std::string kv_type;   ///< of the engine; a setting with that type is measured, too
  };
  /// Errors: those of PeerProcess::start.
  static Result<EnginePeer> start(const Settings& settings);

  const std::string& version() const { return process_.version(); }
  std::span<const std::string> settings() const { return process_.settings(); }

  /// Milliseconds to read tokens from an empty cache.
  Result<double> prefill(size_t setting, std::span<const int32_t> tokens);
  /// Makes the cache hold tokens (untimed; what it holds already is not read again).
  Status fill(size_t setting, std::span<const int32_t> tokens);
  /// Milliseconds of each of n greedy decode steps after the filled context, which is then
  /// restored.
  Result<std::vector<double>> decode(size_t setting, uint32_t n);

 private:
  explicit EnginePeer(PeerProcess process) : process_(std::move(process)) {}

  PeerProcess process_;
};

}  // namespace reprise
