#include "bench/bench.h"

#include <algorithm>
#include <optional>

#include "base/try.h"
#include "bench/cuda/attention_kernels.h"
#include "bench/fusion_bench.h"
#include "bench/measure.h"
#include "engine/model_path.h"
#include "model/tensor_source.h"

namespace reprise {
namespace {

bool measures_engine(const BenchPlan& plan) {
  return plan.bench.measure == "all" || plan.bench.measure == "engine";
}

bool measures_attention(const BenchPlan& plan) {
  return plan.bench.measure == "attention" ||
         (plan.bench.measure == "all" && plan.engine.device == "cuda");
}

Status check(const BenchPlan& plan) {
  if (plan.contexts.empty() || *std::min_element(plan.contexts.begin(), plan.contexts.end()) < 1) {
    return fail(ErrorCode::kInvalidArgument, "--context needs at least one length above 0");
  }
  const uint32_t longest = *std::max_element(plan.contexts.begin(), plan.contexts.end());
  if (plan.engine.ctx > 0 && longest > plan.engine.ctx) {
    return fail(ErrorCode::kInvalidArgument, "--ctx {} holds no context of {} tokens; raise it",
                plan.engine.ctx, longest);
  }
  if (plan.bench.copy_prompt && plan.bench.prefill) {
    return fail(ErrorCode::kInvalidArgument,
                "--copy-prompt keeps prompts, and prefill is measured without; add --no-prefill");
  }
  if (measures_attention(plan) && plan.engine.device != "cuda") {
    return fail(ErrorCode::kInvalidArgument,
                "--measure attention times kernels of a GPU; add --device cuda");
  }
  if (!plan.peer.empty() && plan.peer != kEnginePeer && plan.peer != kAttentionPeer) {
    return fail(ErrorCode::kInvalidArgument, "no peer is called \"{}\"; there are {} and {}",
                plan.peer, kEnginePeer, kAttentionPeer);
  }
  if (plan.peer == kEnginePeer && !measures_engine(plan)) {
    return fail(ErrorCode::kInvalidArgument,
                "--peer llama.cpp is measured beside the engine; leave --measure {} out",
                plan.bench.measure);
  }
  if (plan.peer == kAttentionPeer && !measures_attention(plan)) {
    return fail(ErrorCode::kInvalidArgument,
                "--peer torch is measured beside attention kernels of a GPU; add --device cuda "
                "(and no --measure engine)");
  }
  return validate(plan.engine);
}

Status measure_kernels(const BenchPlan& plan, BenchProgress& progress, BenchReport& report) {
  REPRISE_TRY(const std::string path, resolve_model(plan.engine.model));
  REPRISE_TRY(const TensorSource source, TensorSource::open(path));
  REPRISE_TRY(const ModelConfig config, source.config());
  AttentionCases attention;
  attention.shape = {config.n_head, config.n_kv_head, config.head_dim};
  if (plan.engine.kv_type != kAutoKvType) attention.shape.kv_type = plan.engine.kv_type;
  attention.machine = report.machine;
  if (plan.engine.tp > 1) attention.machine.device = "one of " + attention.machine.device;
  attention.machine.read_gb_s /= plan.engine.tp;
  attention.machine.bf16_tflop_s /= plan.engine.tp;
  attention.rounds = plan.bench.rounds;
  for (const bool decode : {true, false}) {
    for (const uint32_t context : plan.contexts) {
      if (!decode && (!plan.bench.prefill || context > plan.bench.prefill_max)) continue;
      attention.cases.push_back({decode, context, decode ? plan.bench.sequences : 1});
    }
  }
  std::optional<AttentionPeer> peer;
  if (plan.peer == kAttentionPeer) {
    REPRISE_TRY(peer, AttentionPeer::start(attention.shape));
  }
  const uint64_t kernels = 1 + (peer ? peer->kernels().size() : 0);
  progress.expect(attention.cases.size() * attention.rounds * kernels);
  attention.tick = [&] { return progress.tick(); };
  REPRISE_TRY(const auto device, device_attention(attention.shape));
  REPRISE_TRY(report.attention, measure_attention(attention, *device, peer ? &*peer : nullptr));
  return {};
}

}  // namespace

Result<BenchReport> run_bench(const BenchPlan& plan, const ProgressFn& progress) {
  REPRISE_CHECK(check(plan));
  BenchReport report;
  BenchProgress measurements(progress);
  ThreadPool pool(static_cast<int>(plan.engine.threads));
  report.threads = static_cast<uint32_t>(pool.size());
  REPRISE_TRY(const auto roof, make_roof(plan.engine, pool));
  report.machine = roof->machine();
  if (measures_engine(plan)) {
    REPRISE_CHECK(measure_engine(plan, *roof, measurements, report));
  }
  if (measures_attention(plan)) REPRISE_CHECK(measure_kernels(plan, measurements, report));
  if (plan.bench.measure == "fusion") REPRISE_CHECK(measure_fusion(plan, measurements, report));
  return report;
}

}  // namespace reprise
