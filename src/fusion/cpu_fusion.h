// Fused prompts on this machine's processors.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "fusion/fused_pass.h"
#include "model/model.h"

namespace reprise {

/// Everything outlives the result.
std::unique_ptr<FusionDevice> cpu_fusion(Model& model, ThreadPool& pool);

}  // namespace reprise
