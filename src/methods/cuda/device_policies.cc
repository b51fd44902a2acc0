#include "methods/cuda/device_policies.h"

#include "methods/baselines/quest.h"
#include "methods/baselines/streaming.h"
#include "methods/cuda/quest.h"
#include "methods/cuda/streaming.h"

namespace reprise {

Result<std::unique_ptr<DevicePolicy>> device_policy(const Policy& policy,
                                                    const ModelConfig& config) {
  if (policy.reads_everything()) return nullptr;
  if (const auto* streaming = dynamic_cast<const StreamingPolicy*>(&policy)) {
    return std::make_unique<DeviceStreaming>(streaming->options());
  }
  if (const auto* quest = dynamic_cast<const QuestPolicy*>(&policy)) {
    return std::make_unique<DeviceQuest>(quest->options(), config);
  }
  return fail(ErrorCode::kUnsupported,
              "policy {} does not run on cuda; full, streaming and quest do, the others with "
              "--device cpu",
              policy.spec());
}

}  // namespace reprise
