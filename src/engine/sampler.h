// Chooses the next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "reprise/options.h"

namespace reprise {

/// One request's sampler. Its choices depend on its own logits, history and seed only. Order:
/// repetition penalty (Keskar et al. 2019, section 4.1), temperature, top-k, top-p (Holtzman et al.
/// 2020), min-p (Nguyen et al. 2024). Ties go to the lower id.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  /// logits [vocab] may be changed; history: every token before this one. NaN logits never win.
  int32_t sample(std::span<float> logits, std::span<const int32_t> history);

 private:
  struct Candidate {
    int32_t token;
    float logit;
    float probability;
  };
  void penalize(std::span<float> logits, std::span<const int32_t> history) const;
  void keep_likely(std::span<const float> logits);
  double uniform();

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
};

}  // namespace reprise
