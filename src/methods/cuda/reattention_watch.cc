#include "methods/cuda/reattention_watch.h"

#include <algorithm>

#include "base/try.h"
#include "methods/cuda/find_policy.h"

namespace reprise {

using namespace kernels::cuda;

namespace {

constexpr std::string_view kWhat = "what heads of reattention found";

/// Of a sequence.
template <class Image>
class State : public WatchOnDevice {
 public:
  using Data = typename Image::Data;

  State(const Image& image, cudaStream_t stream) : image_(image), stream_(stream) {}

  Data* data() const { return data_.data(); }

  Status copy(const State& from) {
    REPRISE_CHECK(data_.reserve(1, kWhat));
    REPRISE_CUDA(
        cudaMemcpyAsync(data(), from.data(), sizeof(Data), cudaMemcpyDeviceToDevice, stream_),
        kWhat);
    return {};
  }
  Status adopt(const ReAttentionPolicy& host) {
    const auto image = std::make_unique<Data>(image_.of(host));
    return upload(std::span<const Data>(image.get(), 1), data_, kWhat);
  }

  Result<std::string> save(int32_t length) const override {
    const auto image = std::make_unique<Data>();
    REPRISE_CHECK(bring(*image));
    return image_.save(*image, length);
  }
  Counts counts() const override {
    const auto image = std::make_unique<Data>();
    return bring(*image) ? Counts{image->rows, image->open} : Counts{};
  }
  void clear_counts() override {
    static_assert(offsetof(Data, open) == offsetof(Data, rows) + sizeof(uint32_t));
    cudaMemsetAsync(&data()->rows, 0, 2 * sizeof(uint32_t), stream_);
  }
  uint64_t bytes() const override { return sizeof(Data); }

 private:
  Status bring(Data& image) const {
    REPRISE_CUDA(cudaMemcpyAsync(&image, data(), sizeof(Data), cudaMemcpyDeviceToHost, stream_),
                 kWhat);
    REPRISE_CUDA(cudaStreamSynchronize(stream_), kWhat);
    return {};
  }

  Image image_;
  cudaStream_t stream_;
  DeviceBuffer<Data> data_;
};

}  // namespace

RowEvidence EvidenceImage::of(const ReAttentionPolicy& host) const {
  RowEvidence image;
  image.row = std::max(-1, host.gate().end() - 1);
  host.gate().for_rows(image.row - RowEvidence::kRows + 1, [&](int32_t row, uint32_t heads) {
    const auto own = static_cast<uint16_t>(heads);
    image.heads[row % RowEvidence::kRows] = own;
    if (row == image.row) image.sums[rules.turns % 3] = own;
  });
  return image;
}

std::string EvidenceImage::save(const RowEvidence& image, int32_t length) const {
  Gate gate;
  for (int32_t row = std::max(0, image.row - RowEvidence::kRows + 1); row < image.row; ++row) {
    gate.add(row, image.heads[row % RowEvidence::kRows]);
  }
  if (image.row >= 0) gate.add(image.row, image.sums[rules.turns % 3]);
  gate.truncate(length);
  return gate.save();
}

cudaError_t EvidenceImage::forget(RowEvidence* data, int32_t length, cudaStream_t stream) const {
  return forget_evidence(data, length, rules, stream);
}

RowAgreement AgreementImage::of(const ReAttentionPolicy& host) const {
  static_assert(RowAgreement::kVotes == Agreement::kVotes &&
                RowAgreement::kRegions == Agreement::kRegions);
  RowAgreement image;
  host.agreement().for_votes([&](int32_t row, int32_t page) {
    image.row_of[image.end] = row;
    image.page_of[image.end++] = page;
  });
  return image;
}

std::string AgreementImage::save(const RowAgreement& image, int32_t length) const {
  Agreement agreement;
  for (uint32_t i = image.begin; i != image.end; ++i) {
    const uint32_t at = i % RowAgreement::kVotes;
    agreement.add_page(image.row_of[at], image.page_of[at]);
  }
  agreement.truncate(length);
  return agreement.save();
}

cudaError_t AgreementImage::forget(RowAgreement* data, int32_t length, cudaStream_t stream) const {
  return forget_agreement(data, length, stream);
}

template <class Image>
Status DeviceWatch<Image>::reserve(uint32_t sequences, const Image& image) {
  image_ = image;
  states_.assign(sequences, nullptr);
  return sent_.reserve(sequences, kWhat);
}

template <class Image>
Result<typename Image::Data*> DeviceWatch<Image>::data_of(const ReAttentionPolicy& host,
                                                          cudaStream_t stream) const {
  ReAttentionPolicy::Device& device = host.device();
  if (device.state == nullptr || device.state.use_count() > 1) {  // made, or of a fork
    auto own = std::make_shared<State<Image>>(image_, stream);
    if (device.state == nullptr) {
      REPRISE_CHECK(own->adopt(host));
    } else {
      REPRISE_CHECK(own->copy(static_cast<const State<Image>&>(*device.state)));
    }
    device.state = std::move(own);
  }
  Data* const data = static_cast<const State<Image>&>(*device.state).data();
  REPRISE_CHECK(device.forget([&](int32_t length) -> Status {
    REPRISE_CUDA(image_.forget(data, length, stream), kWhat);
    return {};
  }));
  return data;
}

template <class Image>
Status DeviceWatch<Image>::plan(const DevicePlan& plan, const DevicePolicy& own,
                                cudaStream_t stream) {
  std::vector<Data*> states(states_.size(), nullptr);
  for (const DeviceGroup& group : plan.groups) {
    for (uint32_t i = group.first; group.policy == &own && i < group.first + group.count; ++i) {
      const auto* host = find_policy<ReAttentionPolicy>(*plan.acting[i]);
      REPRISE_TRY(states[i], data_of(*host, stream));
    }
  }
  if (states == states_) return {};
  states_ = std::move(states);
  return sent_.send(states_, plan.turn, stream);
}

template class DeviceWatch<EvidenceImage>;
template class DeviceWatch<AgreementImage>;

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
