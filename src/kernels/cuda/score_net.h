// The network of AttentionPredictor (arXiv 2502.04077) over what pages got at past rows, as
// NetworkPredictor computes it: projections of rows that see no edge of time are kept. Sizes of
// launches depend on capacities only, so that calls may be captured and replayed.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/page_shares.h"
#include "kernels/score_net.h"

namespace reprise::kernels::cuda {

struct ForecastArgs {
  const ScoreNet* net = nullptr;  // in device memory
  ShareHistory history;
  float* parts = nullptr;              // as history.rows: projections, in, out
  bool anew = false;                   // none of them is known
  const int32_t* positions = nullptr;  // [rows] of the newest row; < 0: there is none
  const uint32_t* slots = nullptr;     // [rows] of histories and averages; null: their own
  uint32_t rows = 0, n_kv_head = 0, capacity = 0;
  // Columns are the pages that the next row can choose from, as TopPagesArgs says.
  uint32_t sink_pages = 0, recent_tokens = 0;
  const float* averages = nullptr;  // [slots, n_kv_head, capacity]; as published: null
  float* forecasts = nullptr;       // likewise, out
};

/// forecast = mean over time of the projections, and the square root of the average. To be called
/// for every row, in order.
cudaError_t forecast_shares(const ForecastArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
