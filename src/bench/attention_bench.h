// One layer's attention, kernel against kernel: ours, and those of a peer's libraries.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/attention_kernels.h"
#include "bench/machine.h"
#include "bench/peer_process.h"

namespace reprise {

/// Libraries that PyTorch calls, by way of tools/peers/torch_attention_peer.py. Its settings are
/// kernels; their KV is bf16, and contiguous where a kernel cannot read pages.
class AttentionPeer {
 public:
  /// Errors: those of PeerProcess::start.
  static Result<AttentionPeer> start(const AttentionShape& shape);

  const std::string& version() const { return process_.version(); }
  std::span<const std::string> kernels() const { return process_.settings(); }
  /// As AttentionKernels::microseconds(); nothing when the kernel does not do such a case.
  Result<std::optional<double>> microseconds(size_t kernel, const AttentionCase& wanted);

 private:
  explicit AttentionPeer(PeerProcess process) : process_(std::move(process)) {}

  PeerProcess process_;
};

struct AttentionRow {
  std::string phase;   ///< "decode" or "prefill"
  std::string kernel;  ///< "reprise", or one of the peer's
  uint32_t context = 0, batch = 1;
  double median_us = 0;
  double gb_s = 0;      ///< decode: K and V over the time
  double tflop_s = 0;   ///< prefill
  double roof_pct = 0;  ///< of the machine's read bandwidth (decode) or bf16 throughput (prefill)
  double vs_best = 0;   ///< ours: the best peer kernel's time / own time; 0 = no peer
};

struct AttentionReport {
  AttentionShape shape;
  MachineRoof machine;  ///< of one device
  std::string peer;     ///< its version; empty: none
  std::vector<AttentionRow> rows;
};

struct AttentionCases {
  std::vector<AttentionCase> cases;
  uint32_t rounds = 3;
  AttentionShape shape;
  MachineRoof machine;           ///< of one device
  std::function<Status()> tick;  ///< called after every measurement
};

/// Measures every case: each kernel in turn, round after round. peer may be null.
Result<AttentionReport> measure_attention(const AttentionCases& plan, AttentionKernels& kernels,
                                          AttentionPeer* peer);

nlohmann::ordered_json attention_json(const AttentionReport& report);
std::string attention_markdown(const AttentionReport& report);

}  // namespace reprise
