#include "methods/cuda/reattention_watch.h"

#include <algorithm>

#include "base/try.h"
#include "methods/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "what heads of reattention found";

RowEvidence evidence_of(const Gate& gate, const EvidenceRules& rules) {
  RowEvidence image;
  image.row = std::max(-1, gate.end() - 1);
  gate.for_rows(image.row - RowEvidence::kRows + 1, [&](int32_t row, uint32_t heads) {
    const auto own = static_cast<uint16_t>(heads);
    image.heads[row % RowEvidence::kRows] = own;
    if (row == image.row) image.sums[rules.turns % 3] = own;
  });
  return image;
}

Gate gate_of(const RowEvidence& image, const EvidenceRules& rules) {
  Gate gate;
  for (int32_t row = std::max(0, image.row - RowEvidence::kRows + 1); row < image.row; ++row) {
    gate.add(row, image.heads[row % RowEvidence::kRows]);
  }
  if (image.row >= 0) gate.add(image.row, image.sums[rules.turns % 3]);
  return gate;
}

RowAgreement votes_of(const Agreement& agreement) {
  static_assert(RowAgreement::kVotes == Agreement::kVotes &&
                RowAgreement::kRegions == Agreement::kRegions);
  RowAgreement image;
  agreement.for_votes([&](int32_t row, int32_t page) {
    image.row_of[image.end] = row;
    image.page_of[image.end++] = page;
  });
  return image;
}

Agreement agreement_of(const RowAgreement& image) {
  Agreement agreement;
  for (uint32_t i = image.begin; i != image.end; ++i) {
    const uint32_t at = i % RowAgreement::kVotes;
    agreement.add_page(image.row_of[at], image.page_of[at]);
  }
  return agreement;
}

/// Of a sequence.
class State : public WatchOnDevice {
 public:
  State(const WatchShape& shape, cudaStream_t stream) : shape_(shape), stream_(stream) {}

  WatchPointers pointers() const { return {gate_.data(), agreement_.data(), kept_.data()}; }

  Status adopt(const ReAttentionPolicy& host) {
    if (shape_.gate) REPRISE_CHECK(send(evidence_of(host.gate(), shape_.rules), gate_));
    if (shape_.agreement) REPRISE_CHECK(send(votes_of(host.agreement()), agreement_));
    return kept_.reserve(shape_.kept.words(), kWhat);
  }
  Status copy(const State& from) {
    REPRISE_CHECK(copy_all(from.gate_, gate_));
    REPRISE_CHECK(copy_all(from.agreement_, agreement_));
    return copy_all(from.kept_, kept_);
  }
  Status forget(int32_t length) {
    if (shape_.gate) {
      REPRISE_CUDA(forget_evidence(gate_.data(), length, shape_.rules, stream_), kWhat);
    }
    if (shape_.agreement) REPRISE_CUDA(forget_agreement(agreement_.data(), length, stream_), kWhat);
    if (shape_.kept.layers > 0) {
      REPRISE_CUDA(forget_scans(kept_.data(), shape_.kept, length, stream_), kWhat);
    }
    return {};
  }

  Result<std::string> save(int32_t length) const override {
    if (shape_.agreement) {
      REPRISE_TRY(const auto image, bring(agreement_));
      Agreement agreement = agreement_of(*image);
      agreement.truncate(length);
      return agreement.save();
    }
    REPRISE_TRY(const auto image, bring(gate_));
    Gate gate = gate_of(*image, shape_.rules);
    gate.truncate(length);
    return gate.save();
  }
  Counts counts() const override {
    const auto of = [&](const auto& buffer) {
      const auto image = bring(buffer);
      return image ? Counts{(*image)->rows, (*image)->open} : Counts{};
    };
    if (shape_.agreement) return of(agreement_);
    return shape_.gate ? of(gate_) : Counts{};
  }
  void clear_counts() override {
    if (shape_.agreement) clear_rows(*agreement_.data());
    if (shape_.gate) clear_rows(*gate_.data());
  }
  uint64_t bytes() const override {
    return gate_.size() * sizeof(RowEvidence) + agreement_.size() * sizeof(RowAgreement) +
           kept_.size() * sizeof(uint32_t);
  }

 private:
  template <class Data>
  static Status send(const Data& image, DeviceBuffer<Data>& buffer) {
    return upload(std::span<const Data>(&image, 1), buffer, kWhat);
  }
  template <class T>
  Status copy_all(const DeviceBuffer<T>& from, DeviceBuffer<T>& to) const {
    if (from.size() == 0) return {};
    REPRISE_CHECK(to.reserve(from.size(), kWhat));
    REPRISE_CUDA(cudaMemcpyAsync(to.data(), from.data(), from.size() * sizeof(T),
                                 cudaMemcpyDeviceToDevice, stream_),
                 kWhat);
    return {};
  }
  template <class Data>
  Result<std::unique_ptr<Data>> bring(const DeviceBuffer<Data>& buffer) const {
    auto image = std::make_unique<Data>();
    REPRISE_CUDA(
        cudaMemcpyAsync(image.get(), buffer.data(), sizeof(Data), cudaMemcpyDeviceToHost, stream_),
        kWhat);
    REPRISE_CUDA(cudaStreamSynchronize(stream_), kWhat);
    return image;
  }
  // data: on the device.
  template <class Data>
  void clear_rows(Data& data) const {
    static_assert(offsetof(Data, open) == offsetof(Data, rows) + sizeof(uint32_t));
    cudaMemsetAsync(&data.rows, 0, 2 * sizeof(uint32_t), stream_);
  }

  WatchShape shape_;
  cudaStream_t stream_;
  DeviceBuffer<RowEvidence> gate_;        // [1] or none
  DeviceBuffer<RowAgreement> agreement_;  // the same
  DeviceBuffer<uint32_t> kept_;           // [shape_.kept.words()]
};

}  // namespace

Status DeviceWatch::reserve(uint32_t sequences, const WatchShape& shape) {
  shape_ = shape;
  sent_.assign(sequences, {});
  REPRISE_CHECK(gates_.reserve(sequences, kWhat));
  REPRISE_CHECK(agreements_.reserve(sequences, kWhat));
  return kept_.reserve(sequences, kWhat);
}

Result<WatchPointers> DeviceWatch::pointers_of(const ReAttentionPolicy& host,
                                               cudaStream_t stream) const {
  ReAttentionPolicy::Device& device = host.device();
  if (device.state == nullptr || device.state.use_count() > 1) {  // made, or of a fork
    auto own = std::make_shared<State>(shape_, stream);
    if (device.state == nullptr) {
      REPRISE_CHECK(own->adopt(host));
    } else {
      REPRISE_CHECK(own->copy(static_cast<const State&>(*device.state)));
    }
    device.state = std::move(own);
  }
  auto& state = static_cast<State&>(*device.state);
  REPRISE_CHECK(device.forget([&](int32_t length) { return state.forget(length); }));
  return state.pointers();
}

Status DeviceWatch::plan(const DevicePlan& plan, const DevicePolicy& own, cudaStream_t stream) {
  if (!shape_.any()) return {};
  std::vector<WatchPointers> all(sent_.size());
  for (const DeviceGroup& group : plan.groups) {
    for (uint32_t i = group.first; group.policy == &own && i < group.first + group.count; ++i) {
      const auto* host = find_policy<ReAttentionPolicy>(*plan.acting[i]);
      REPRISE_TRY(all[i], pointers_of(*host, stream));
    }
  }
  if (all == sent_) return {};
  sent_ = std::move(all);
  const auto send = [&](auto& staged, auto WatchPointers::*member) {
    std::ranges::transform(sent_, staged.staged(plan.turn), member);
    return staged.send(plan.turn, sent_.size(), stream);
  };
  REPRISE_CHECK(send(gates_, &WatchPointers::gate));
  REPRISE_CHECK(send(agreements_, &WatchPointers::agreement));
  return send(kept_, &WatchPointers::kept);
}

AgreementRules agreement_rules(double votes) {
  AgreementRules rules;
  static_assert(Agreement::kRows <= std::size(AgreementRules{}.weights));
  rules.reach = Agreement::kRows;
  std::ranges::copy(Agreement::weights(), rules.weights);
  rules.least = Agreement::enough(0, votes);
  rules.near = Agreement::kNear;
  rules.fewest = Agreement::kFewest;
  return rules;
}

}  // namespace reprise
