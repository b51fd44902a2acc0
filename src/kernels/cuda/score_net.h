// The network of AttentionPredictor (arXiv 2502.04077) over what pages got at past rows, as
// NetworkPredictor computes it: projections of rows that see no edge of time are kept. Sizes of
// launches depend on capacities only, so that calls may be captured and replayed.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/page_shares.h"
#include "kernels/score_net.h"

namespace reprise::kernels::cuda {

/// A network as tensor cores take it: operands are f16, scaled by powers of two. Of activations
/// behind the first convolution only what inputs change goes through the second one, so that
/// rounding is in proportion to inputs, however small beside the biases; what the second one makes
/// of activations without inputs is in `still`.
struct ScoreNetImage {
  uint32_t conv1[kNetInner / 8][32][2];     // of inputs 4 row + column; by lane, as mma takes them
  uint32_t conv2[9][kNetOuter / 8][32][2];  // [row, column] likewise
  float bias1[kNetInner];
  // Bit r: the r-th row is there; bit 0 and 1: the left and the right column is not.
  float still[8][4][kNetOuter];
  float conv3[kNetOuter];
  float bias3;
  float unit1, inner_scale, unit2;  // of products; what changes of activations are multiplied by
};
/// What inputs are multiplied by: shares of attention, or their roots, are below 2.
inline constexpr float kNetInputScale = 0x1p14f;
ScoreNetImage score_net_image(const ScoreNet& net);

struct ForecastArgs {
  const ScoreNetImage* net = nullptr;  // in device memory
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
  // Layers, and how many elements lie from one's averages and forecasts to the next one's;
  // histories and parts are so many times farther apart as they have rows.
  uint32_t layers = 1;
  size_t layer_stride = 0;
};

/// forecast = mean over time of the projections, and the square root of the average. To be called
/// for every row, in order.
cudaError_t forecast_shares(const ForecastArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
