#include "methods/policy_memory.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "attention/executor.h"
#include "base/try.h"
#include "methods/find_policy.h"
#include "methods/mac/mac.h"
#include "methods/registry.h"
#include "model/rope.h"

namespace reprise {
namespace {

constexpr int32_t kLengths[] = {2048, 4096, 8192};
constexpr uint64_t kAllTokens = kLengths[0] + kLengths[1] + kLengths[2];
constexpr uint32_t kMostLayers = 5;  // decorators may leave the first ones alone
constexpr int32_t kChunk = 512, kAnswer = 8;
constexpr size_t kNoise = 100'003;  // values that repeat: a prime, so that rows differ

/// The model's attention, with layers of one KV head that see everything.
ModelConfig cut(const ModelConfig& config, uint32_t layers) {
  ModelConfig one = config;
  one.name = PolicyMemory::kPartName;
  one.vocab = 0;  // see is_part()
  one.n_layer = layers;
  one.n_head = config.n_head / config.n_kv_head;
  one.n_kv_head = 1;
  one.window.assign(layers, 0);
  one.layer_rope.assign(layers, LayerRope::kGlobal);
  return one;
}

/// Layers that a policy is asked for.
uint32_t whole_layers(const ModelConfig& config) {
  return static_cast<uint32_t>(std::count(config.window.begin(), config.window.end(), 0u));
}

/// The spec to measure a part of the model with: whether mac's ring_memory holds a ring is told by
/// the whole model's, and a part gets one all the same, or none.
std::string for_parts(std::string_view spec, const Policy& whole) {
  std::string text(spec);
  const auto* mac = find_policy<MacPolicy>(whole);
  if (mac == nullptr || mac->settings().ring_memory == 0) return text;
  constexpr std::string_view kOption = "ring_memory=";
  const size_t at = text.find(kOption) + kOption.size();
  const bool fits = mac->rings_bytes() <= mac->settings().ring_memory;
  return text.replace(at, text.find_first_of(",+", at) - at, fits ? "0" : "1");
}

/// For a part of the model that it may be asked for.
Result<std::unique_ptr<Policy>> create_for(const ModelConfig& part, std::string_view spec) {
  auto policy = create_policy(policy_entries(), spec, part);
  if (policy) return policy;
  return fail(ErrorCode::kUnsupported,
              "what {} keeps is measured with {} layers of one KV head, which its options do not "
              "fit ({}); leave out those for single layers and heads",
              spec, part.n_layer, policy.error().message);
}

using Advance = std::function<Status(uint64_t)>;

class NoiseReader {
 public:
  /// advance: is told of tokens that were read.
  NoiseReader(const ModelConfig& config, ThreadPool& pool, const Advance& advance)
      : advance_(advance),
        config_(config),
        rope_(config.rope, kLengths[2]),
        ropes_(config.n_layer, &rope_),
        executor_(config_, ropes_, pool),
        noise_(kNoise) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : noise_) value = normal(random);
  }

  /// State after a prompt and a few tokens of an answer.
  Result<uint64_t> state_bytes(std::unique_ptr<Policy> given, int32_t length) {
    const kernels::KvLayout layout = {kernels::KvType::kBF16, 1, config_.head_dim};
    const uint64_t room = uint64_t{config_.n_layer} * layout.page_bytes() *
                          (static_cast<uint64_t>(length) / kPageTokens + 1) * 2;
    REPRISE_TRY(PagePool pages, PagePool::create(layout, config_.n_layer, room));
    SequenceKv kv(pages);
    const std::unique_ptr<Policy> policy = std::move(given);  // which may hold pages
    const int32_t prompt = length - kAnswer;
    for (int32_t first = 0; first < length;) {
      const int32_t left = prompt - first, count = left > 0 ? std::min(left, kChunk) : 1;
      REPRISE_CHECK(step(kv, *policy, count, prompt));
      first += count;
      REPRISE_CHECK(advance_(static_cast<uint64_t>(count)));
    }
    return policy->state_bytes();
  }

 private:
  Status step(SequenceKv& kv, Policy& policy, int32_t count, int32_t prompt) {
    const int32_t first = kv.length();
    const auto size = static_cast<size_t>(count);
    std::vector<Row> rows;
    rows.reserve(size);
    for (int32_t i = 0; i < count; ++i) rows.push_back({0, first + i, 0});
    const auto phase = first < prompt ? kernels::Phase::kPrefill : kernels::Phase::kDecode;
    const SequenceStep steps[] = {{&kv, &policy, 0, static_cast<uint32_t>(count), phase, prompt}};
    REPRISE_CHECK(kv.reserve(size));
    executor_.begin(rows, steps);
    const size_t width = size_t{config_.n_head} * config_.head_dim;
    std::vector<float> out(size * width);
    for (uint32_t layer = 0; layer < config_.n_layer; ++layer) {
      std::vector<float> q = next(size * width), k = next(size * config_.head_dim),
                         v = next(size * config_.head_dim);
      REPRISE_CHECK(executor_.attend(layer, q.data(), k.data(), v.data(), out.data()));
    }
    kv.commit(size);
    policy.after_step(kv);
    return {};
  }

  std::vector<float> next(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = noise_[at_++ % kNoise];
    return values;
  }

  const Advance& advance_;
  ModelConfig config_;
  RopeTable rope_;
  std::vector<const RopeTable*> ropes_;
  CpuExecutor executor_;
  std::vector<float> noise_;
  size_t at_ = 0;
};

}  // namespace

Result<PolicyMemory> PolicyMemory::measure(std::string_view policy, const ModelConfig& config,
                                           ThreadPool& pool, const ProgressFn& progress) {
  REPRISE_TRY(const auto whole, create_policy(policy_entries(), policy, config));
  const std::string spec = for_parts(policy, *whole);
  const uint32_t layers = whole_layers(config), most = std::min(layers, kMostLayers);
  const uint64_t total = kAllTokens * std::min(most, 2u);
  uint64_t done = 0;
  const Advance advance = [&](uint64_t tokens) -> Status {
    done += tokens;
    if (!progress || progress({"measure", done, total, "tokens"})) return {};
    return fail(ErrorCode::kCancelled, "measuring what {} keeps was stopped", policy);
  };
  std::vector<Point> points;
  for (const int32_t length : kLengths) {
    double bytes[2] = {0.0, 0.0};  // of a layer less, and of all measured
    for (const uint32_t fewer : {1u, 0u}) {
      if (most <= fewer) continue;
      const ModelConfig part = cut(config, most - fewer);
      REPRISE_TRY(auto own, create_for(part, spec));
      REPRISE_TRY(const uint64_t measured,
                  NoiseReader(part, pool, advance).state_bytes(std::move(own), length));
      bytes[1 - fewer] = static_cast<double>(measured);
    }
    const double all = bytes[1] + (bytes[1] - bytes[0]) * (layers - most);
    points.push_back({static_cast<double>(length), all * config.n_kv_head});
  }
  PolicyMemory memory(std::move(points));
  const std::string& inner = whole->undecorated().spec();
  if (memory.bytes(kLengths[2]) > 0 || inner == policy) return memory;
  REPRISE_TRY(const PolicyMemory alone, measure(inner, config, pool, progress));
  if (alone.bytes(kLengths[2]) == 0) return memory;
  return fail(
      ErrorCode::kUnsupported,
      "what {} keeps is measured with {} layers, of which it leaves all alone; plan for {}, "
      "which keeps more",
      policy, most, inner);
}

uint64_t PolicyMemory::bytes(uint64_t tokens) const {
  const auto at = static_cast<double>(tokens);
  size_t next = 1;
  while (next + 1 < points_.size() && points_[next].tokens < at) ++next;
  const Point &a = points_[next - 1], &b = points_[next];
  if (at < points_.front().tokens) return static_cast<uint64_t>(points_.front().bytes);
  const double slope = (b.bytes - a.bytes) / (b.tokens - a.tokens);
  return static_cast<uint64_t>(std::max(0.0, a.bytes + slope * (at - a.tokens)));
}

}  // namespace reprise
