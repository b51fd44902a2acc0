#include "bench/engine_peer.h"

#include "base/try.h"

namespace reprise {
namespace {

constexpr PeerProgram kProgram = {"llama.cpp", "llama_cpp_peer.py",
                                  "run `make peer`, or set REPRISE_PEER_PYTHON to a Python that "
                                  "has llama-cpp-python"};

}  // namespace

Result<EnginePeer> EnginePeer::start(const Settings& settings) {
  REPRISE_TRY(PeerProcess process, PeerProcess::start(kProgram, {{"model", settings.model},
                                                                 {"threads", settings.threads},
                                                                 {"context", settings.context},
                                                                 {"kv_type", settings.kv_type}}));
  return EnginePeer(std::move(process));
}

Result<double> EnginePeer::prefill(size_t setting, std::span<const int32_t> tokens) {
  REPRISE_TRY(const auto answer,
              process_.ask({{"op", "prefill"},
                            {"setting", setting},
                            {"tokens", std::vector<int32_t>(tokens.begin(), tokens.end())}}));
  return PeerProcess::field<double>(answer, "ms");
}

Status EnginePeer::fill(size_t setting, std::span<const int32_t> tokens) {
  REPRISE_TRY(const auto answer,
              process_.ask({{"op", "fill"},
                            {"setting", setting},
                            {"tokens", std::vector<int32_t>(tokens.begin(), tokens.end())}}));
  REPRISE_TRY(const auto filled, PeerProcess::field<size_t>(answer, "filled"));
  if (filled == tokens.size()) return {};
  return fail(ErrorCode::kUnsupported, "the peer filled {} of {} tokens", filled, tokens.size());
}

Result<std::vector<double>> EnginePeer::decode(size_t setting, uint32_t n) {
  REPRISE_TRY(const auto answer, process_.ask({{"op", "decode"}, {"setting", setting}, {"n", n}}));
  REPRISE_TRY(auto times, PeerProcess::field<std::vector<double>>(answer, "ms"));
  if (times.size() == n) return times;
  return fail(ErrorCode::kUnsupported, "the peer timed {} of {} steps", times.size(), n);
}

}  // namespace reprise
