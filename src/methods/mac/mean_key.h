// The first-order correction of MAC-Attention: a reused result's log-sum-exp moves with the query,
// at the rate of the mean of the keys it covers, weighted as attention weighs them.
#pragma once

#include <vector>

#include "attention/policy.h"
#include "kernels/attention.h"
#include "model/config.h"

namespace reprise {

/// Attention results of query heads that share a KV head.
struct CoveredKeys {
  size_t kv_head = 0, results = 0;
  const float* q = nullptr;        // [results, head_dim] rotated
  const int32_t* begin = nullptr;  // [results]
  const int32_t* end = nullptr;    // [results]
  const float* lse = nullptr;      // [results]
};

/// Buffers of one thread.
struct MeanKeyScratch {
  std::vector<kernels::PageSpan> pages;
  std::vector<float> logits, key;
};

/// mean[r] = sum of exp(logit - lse[r]) k over keys [begin[r], end[r]) of the rows' layer; keys of
/// a weight below 1e-6 are left out. mean: [results, head_dim]
void mean_keys(const QueryRows& rows, const ModelConfig& config, const CoveredKeys& of,
               MeanKeyScratch& scratch, float* mean);

}  // namespace reprise
