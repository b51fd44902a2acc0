#include "bench/machine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <new>

#include "base/huge_pages.h"
#include "kernels/peak.h"

namespace reprise {
namespace {

constexpr size_t kReadBytes = size_t{512} << 20;
constexpr size_t kPieceWords = size_t{1} << 15;  // 256 KiB
constexpr size_t kPieceBytes = kPieceWords * sizeof(uint64_t);
constexpr int kRuns = 8;

double best_seconds(const std::function<void()>& body) {
  double best = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

double measure_tflop_s(ThreadPool& pool, kernels::Products products) {
  constexpr size_t kTasksPerThread = 8;
  const size_t tasks = kTasksPerThread * static_cast<size_t>(pool.size());
  const double flops = kernels::peak_flops(products) * static_cast<double>(tasks);
  const double seconds =
      best_seconds([&] { pool.run(tasks, [&](size_t, int) { kernels::run_peak(products); }); });
  return flops / seconds * 1e-12;
}

}  // namespace

ReadProbe::ReadProbe(ThreadPool& pool) : pool_(pool), memory_(huge_page_memory(kReadBytes)) {
  if (memory_ == nullptr) throw std::bad_alloc();
  pool_.run(kReadBytes / kPieceBytes, [&](size_t piece, int) {
    std::fill_n(&memory_[piece * kPieceBytes], kPieceBytes, std::byte(piece));
  });
}

double ReadProbe::gb_s(size_t bytes) const {
  const size_t pieces = (std::min(bytes, kReadBytes) + kPieceBytes - 1) / kPieceBytes;
  const auto* words = reinterpret_cast<const uint64_t*>(memory_.get());
  std::atomic<uint64_t> sink = 0;  // keeps the reads alive
  const double seconds = best_seconds([&] {
    pool_.run(pieces, [&](size_t piece, int) {
      sink += kernels::read_all(&words[piece * kPieceWords], kPieceWords);
    });
  });
  return static_cast<double>(pieces * kPieceBytes) / seconds * 1e-9;
}

double ReadProbe::memory_gb_s() const { return gb_s(kReadBytes); }

MachineRoof measure_machine(ThreadPool& pool, const ReadProbe& probe) {
  MachineRoof roof;
  roof.read_gb_s = probe.memory_gb_s();
  roof.bf16_tflop_s = measure_tflop_s(pool, kernels::Products::kBf16);
  roof.quantised_tflop_s = measure_tflop_s(pool, kernels::Products::kQuantised);
  return roof;
}

}  // namespace reprise
