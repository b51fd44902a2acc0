// The engine's own passes: prefill and decode per context, policy and peer.
#pragma once

#include "bench/bench.h"
#include "bench/roof.h"

namespace reprise {

/// Counts measurements for a progress bar.
class BenchProgress {
 public:
  explicit BenchProgress(const ProgressFn& callback) : callback_(callback) {}

  void expect(uint64_t measurements) { total_ += measurements; }
  /// One more is done. kCancelled when the callback says so.
  Status tick();
  /// For what reads prompts inside a measurement: a cancel does not wait for its end.
  ProgressFn within();

 private:
  bool goes_on() const { return !callback_ || callback_({"bench", done_, total_, "measurements"}); }

  const ProgressFn& callback_;
  uint64_t done_ = 0, total_ = 0;
};

/// Adds the model and its rows to the report, whose machine and threads are set.
Status measure_engine(const BenchPlan& plan, Roof& roof, BenchProgress& progress,
                      BenchReport& report);

}  // namespace reprise
