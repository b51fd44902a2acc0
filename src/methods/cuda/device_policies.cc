#include "methods/cuda/device_policies.h"

#include <algorithm>

#include "base/try.h"
#include "methods/baselines/full.h"
#include "methods/baselines/quest.h"
#include "methods/baselines/streaming.h"
#include "methods/cuda/attention_predictor.h"
#include "methods/cuda/csattention.h"
#include "methods/cuda/csattention_lists.h"
#include "methods/cuda/h2o.h"
#include "methods/cuda/mac.h"
#include "methods/cuda/position_free.h"
#include "methods/cuda/quest.h"
#include "methods/cuda/reattention.h"
#include "methods/cuda/snapkv.h"
#include "methods/cuda/streaming.h"
#include "methods/decorators/dense.h"

namespace reprise {
namespace {

bool has_windows(const ModelConfig& config) {
  return std::any_of(config.window.begin(), config.window.end(),
                     [](uint32_t window) { return window > 0; });
}

/// Null: the policy is none that names whole pages. numbered: lists say which they are.
Result<std::unique_ptr<DevicePolicy>> choosing_pages(const Policy& policy,
                                                     const ModelConfig& config, bool numbered) {
  if (const auto* quest = dynamic_cast<const QuestPolicy*>(&policy)) {
    return std::make_unique<DeviceQuest>(quest->options(), config, numbered);
  }
  if (const auto* csattention = dynamic_cast<const CsAttentionPolicy*>(&policy)) {
    REPRISE_CHECK(DeviceCsAttention::check(*csattention, config));
    return std::make_unique<DeviceCsAttention>(*csattention, config, numbered);
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<DevicePolicy>> device_policy(const Policy& policy,
                                                    const ModelConfig& config) {
  if (policy.reads_everything()) return nullptr;
  if (policy.position_free() && has_windows(config)) {
    return fail(ErrorCode::kUnsupported,
                "policy {} keeps keys position-free, which --device cuda does not have for models "
                "with sliding windows; use --device cpu",
                policy.spec());
  }
  if (dynamic_cast<const FullPolicy*>(&policy) != nullptr) {
    return std::make_unique<DevicePositionFree>();
  }
  if (const auto* streaming = dynamic_cast<const StreamingPolicy*>(&policy)) {
    return std::make_unique<DeviceStreaming>(streaming->options(), config);
  }
  if (const auto* lists = dynamic_cast<const CsAttentionPolicy*>(&policy);
      lists != nullptr && has_lists(lists->options())) {
    return DeviceCentroidLists::create(*lists, config);
  }
  REPRISE_TRY(auto choosing, choosing_pages(policy, config, false));
  if (choosing != nullptr) return choosing;
  if (const auto* snapkv = dynamic_cast<const SnapKvPolicy*>(&policy)) {
    return std::make_unique<DeviceSnapKv>(snapkv->options(), config);
  }
  if (const auto* h2o = dynamic_cast<const H2oPolicy*>(&policy)) {
    return std::make_unique<DeviceH2o>(*h2o, config);
  }
  if (const auto* predictor = dynamic_cast<const AttentionPredictorPolicy*>(&policy)) {
    return std::make_unique<DeviceAttentionPredictor>(*predictor, config);
  }
  if (const auto* mac = dynamic_cast<const MacPolicy*>(&policy);
      mac != nullptr && !mac->settings().fixes && !mac->settings().in_prompts) {
    if (!mac->settings().reuses) return device_policy(mac->wrapped(), config);
    if (mac->wrapped().reads_everything()) {
      return std::make_unique<DeviceMac>(*mac, config, nullptr);
    }
    REPRISE_TRY(auto inner, choosing_pages(mac->wrapped(), config, true));
    if (inner != nullptr) return std::make_unique<DeviceMac>(*mac, config, std::move(inner));
  }
  if (const auto* reattention = dynamic_cast<const ReAttentionPolicy*>(&policy)) {
    return DeviceReAttention::create(*reattention, config);
  }
  if (const auto* dense = dynamic_cast<const DensePolicy*>(&policy)) {
    REPRISE_TRY(auto made, device_policy(dense->wrapped(), config));
    if (made != nullptr) made->leave_alone(dense->dense());
    return made;
  }
  return fail(
      ErrorCode::kUnsupported,
      "policy {} does not run on cuda; full, streaming, quest, snapkv, h2o, reattention, "
      "csattention, attention_predictor and mac (over full, quest or "
      "csattention, without lse_fix and prefill=reuse) do, also after dense, and auto among "
      "full, quest and mac; use --device cpu",
      policy.spec());
}

}  // namespace reprise
