#include "methods/cuda/reattention_gate.h"

#include <algorithm>

#include "base/try.h"
#include "methods/cuda/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "the gate of reattention";

/// Of a sequence.
class State : public GateOnDevice {
 public:
  State(const EvidenceRules& rules, cudaStream_t stream) : rules_(rules), stream_(stream) {}

  RowEvidence* evidence() const { return evidence_.data(); }

  Status copy(const State& from) {
    REPRISE_CHECK(evidence_.reserve(1, kWhat));
    REPRISE_CUDA(cudaMemcpyAsync(evidence(), from.evidence(), sizeof(RowEvidence),
                                 cudaMemcpyDeviceToDevice, stream_),
                 kWhat);
    return {};
  }
  Status adopt(const Gate& gate) {
    RowEvidence host;
    host.row = std::max(-1, gate.end() - 1);
    gate.for_rows(host.row - RowEvidence::kRows + 1, [&](int32_t row, uint32_t heads) {
      const auto own = static_cast<uint16_t>(heads);
      host.heads[row % RowEvidence::kRows] = own;
      if (row == host.row) host.sums[rules_.turns % 3] = own;
    });
    return upload(std::span<const RowEvidence>(&host, 1), evidence_, kWhat);
  }

  Status fetch(Gate& gate) const override {
    RowEvidence host;
    REPRISE_CHECK(bring(host));
    for (int32_t row = std::max(0, host.row - RowEvidence::kRows + 1); row < host.row; ++row) {
      gate.add(row, host.heads[row % RowEvidence::kRows]);
    }
    if (host.row >= 0) gate.add(host.row, host.sums[rules_.turns % 3]);
    return {};
  }
  Counts counts() const override {
    RowEvidence host;
    return bring(host) ? Counts{host.rows, host.open} : Counts{};
  }
  void clear_counts() override {
    static_assert(offsetof(RowEvidence, open) == offsetof(RowEvidence, rows) + sizeof(uint32_t));
    cudaMemsetAsync(&evidence()->rows, 0, 2 * sizeof(uint32_t), stream_);
  }
  uint64_t bytes() const override { return sizeof(RowEvidence); }

 private:
  Status bring(RowEvidence& host) const {
    REPRISE_CUDA(cudaMemcpyAsync(&host, evidence(), sizeof(host), cudaMemcpyDeviceToHost, stream_),
                 kWhat);
    REPRISE_CUDA(cudaStreamSynchronize(stream_), kWhat);
    return {};
  }

  EvidenceRules rules_;
  cudaStream_t stream_;
  DeviceBuffer<RowEvidence> evidence_;
};

}  // namespace

Status DeviceGates::reserve(uint32_t sequences, uint32_t turns) {
  rules_ = {turns, static_cast<float>(Gate::kFade), Gate::kRows};
  states_.assign(sequences, nullptr);
  for (auto& staged : staged_) REPRISE_CHECK(staged.reserve(sequences, kWhat));
  return device_states_.reserve(sequences, kWhat);
}

Result<RowEvidence*> DeviceGates::evidence_of(const ReAttentionPolicy& host,
                                              cudaStream_t stream) const {
  ReAttentionPolicy::Device& device = host.device();
  if (device.state == nullptr || device.state.use_count() > 1) {  // made, or of a fork
    auto own = std::make_shared<State>(rules_, stream);
    if (device.state == nullptr) {
      REPRISE_CHECK(own->adopt(host.gate()));
    } else {
      REPRISE_CHECK(own->copy(static_cast<const State&>(*device.state)));
    }
    device.state = std::move(own);
  }
  RowEvidence* const evidence = static_cast<const State&>(*device.state).evidence();
  REPRISE_CHECK(device.forget([&](int32_t length) -> Status {
    REPRISE_CUDA(forget_evidence(evidence, length, rules_, stream), kWhat);
    return {};
  }));
  return evidence;
}

Status DeviceGates::plan(const DevicePlan& plan, const DevicePolicy& own, cudaStream_t stream) {
  std::vector<RowEvidence*> states(states_.size(), nullptr);
  for (const DeviceGroup& group : plan.groups) {
    for (uint32_t i = group.first; group.policy == &own && i < group.first + group.count; ++i) {
      const auto* host = find_policy<ReAttentionPolicy>(*plan.acting[i]);
      REPRISE_TRY(states[i], evidence_of(*host, stream));
    }
  }
  if (states == states_) return {};
  states_ = std::move(states);
  std::copy(states_.begin(), states_.end(), staged_[plan.turn].data());
  REPRISE_CUDA(
      cudaMemcpyAsync(device_states_.data(), staged_[plan.turn].data(),
                      states_.size() * sizeof(RowEvidence*), cudaMemcpyHostToDevice, stream),
      kWhat);
  return {};
}

Result<EvidenceArgs> DeviceGates::args(uint32_t first, uint32_t count, const int32_t* positions,
                                       uint32_t turn, cudaStream_t stream) const {
  RowEvidence* const* states = device_states_.data() + first;
  if (turn == 0) REPRISE_CUDA(begin_evidence(states, positions, count, rules_, stream), kWhat);
  return EvidenceArgs{states, turn, open_};
}

}  // namespace reprise
