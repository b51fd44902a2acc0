// Chooses next tokens from logits on a CUDA device; the rules of engine/sampler.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace reprise::kernels::cuda {

/// How one sequence is sampled; lives in device memory, so that a captured step follows changes.
struct SampleRule {
  float temp = 0.0f, top_p = 1.0f, min_p = 0.0f, repeat_penalty = 1.0f;
  uint32_t top_k = 0;
  uint32_t repeat_window = 0;
  uint64_t seed = 0;
};

struct SampleArgs {
  float* logits = nullptr;  // [batch, vocab]; changed where a penalty applies
  uint32_t batch = 0, vocab = 0;
  const SampleRule* rules = nullptr;  // [batch]
  // [batch, history_capacity] the sequence's last tokens: token at position p stands at
  // p % history_capacity. A penalty sees those up to the row's position; the chosen token is
  // written to the next one.
  int32_t* history = nullptr;
  uint32_t history_capacity = 0;  // a power of two, >= every repeat_window + 1
  int32_t* positions = nullptr;   // [batch] of the row just computed; < 0: nothing happens
  int32_t* tokens = nullptr;      // [batch] out: the chosen ids
  bool advance = false;           // also adds 1 to positions
  int32_t* host_tokens =
      nullptr;                // [batch] the ids again, in host memory the device writes; or null
  void* workspace = nullptr;  // sampling_workspace() bytes
};

/// Enough for every smaller batch, too.
size_t sampling_workspace(uint32_t batch, uint32_t vocab);

/// Penalty, top-k, temperature, top-p, min-p, and a draw whose random number is a function of seed
/// and position alone (Philox). Ties go to the lower id; NaN never wins; temp 0 is greedy. Rules
/// and positions are read on the device, so a captured call may be replayed. Probabilities are
/// multiples of 2^-43 of the largest, and sums of them exact: a row's token depends on nothing but
/// its own logits, rule, history and position. The workspace keeps nothing between calls.
/// cudaErrorNotSupported: vocab above 2^20.
cudaError_t sample(const SampleArgs& args, cudaStream_t stream);

}  // namespace reprise::kernels::cuda
