#include "bench/attention_bench.h"

#include <algorithm>

#include "base/percentile.h"
#include "base/try.h"

namespace reprise {
namespace {

constexpr PeerProgram kProgram = {"torch", "torch_attention_peer.py",
                                  "set REPRISE_PEER_PYTHON to a Python that has PyTorch with CUDA "
                                  "(and flashinfer-python, to be compared too)"};
constexpr std::string_view kOurs = "reprise";

struct Subject {
  std::string kernel;
  std::vector<double> microseconds;
};

/// Of causal attention over a whole prompt.
double prompt_flops(const AttentionShape& shape, double context) {
  return 4.0 * shape.n_head * shape.head_dim * context * (context + 1) / 2;
}

AttentionRow make_row(const AttentionCases& plan, const AttentionCase& measured,
                      const Subject& subject, double kv_bytes_per_token) {
  AttentionRow row{measured.decode ? "decode" : "prefill", subject.kernel, measured.context,
                   measured.decode ? measured.batch : 1};
  row.median_us = percentile(subject.microseconds, 0.5);
  if (measured.decode) {
    row.gb_s = kv_bytes_per_token * measured.context * measured.batch / row.median_us * 1e-3;
    row.roof_pct = row.gb_s / plan.machine.read_gb_s * 100;
  } else {
    row.tflop_s = prompt_flops(plan.shape, measured.context) / row.median_us * 1e-6;
    row.roof_pct = row.tflop_s / plan.machine.bf16_tflop_s * 100;
  }
  return row;
}

Status measure_case(const AttentionCases& plan, const AttentionCase& wanted,
                    AttentionKernels& kernels, AttentionPeer* peer, AttentionReport& report) {
  REPRISE_CHECK(kernels.prepare(wanted));
  std::vector<Subject> subjects{{std::string(kOurs), {}}};
  if (peer != nullptr) {
    for (const std::string& kernel : peer->kernels()) subjects.push_back({kernel, {}});
  }
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    REPRISE_TRY(const double own, kernels.microseconds());
    subjects.front().microseconds.push_back(own);
    REPRISE_CHECK(plan.tick());
    for (size_t i = 1; i < subjects.size(); ++i) {
      REPRISE_TRY(const auto time, peer->microseconds(i - 1, wanted));
      if (time) subjects[i].microseconds.push_back(*time);
      REPRISE_CHECK(plan.tick());
    }
  }
  const size_t first = report.rows.size();
  double best = 0;
  for (const Subject& subject : subjects) {
    if (subject.microseconds.empty()) continue;
    // The peers' KV is bf16 whatever ours is.
    const double bytes = subject.kernel == kOurs ? kernels.kv_bytes_per_token()
                                                 : 4.0 * plan.shape.n_kv_head * plan.shape.head_dim;
    const AttentionRow& row = report.rows.emplace_back(make_row(plan, wanted, subject, bytes));
    if (row.kernel != kOurs) best = best > 0 ? std::min(best, row.median_us) : row.median_us;
  }
  report.rows[first].vs_best = best / report.rows[first].median_us;
  return {};
}

}  // namespace

Result<AttentionPeer> AttentionPeer::start(const AttentionShape& shape) {
  REPRISE_TRY(PeerProcess process, PeerProcess::start(kProgram, {{"n_head", shape.n_head},
                                                                 {"n_kv_head", shape.n_kv_head},
                                                                 {"head_dim", shape.head_dim}}));
  return AttentionPeer(std::move(process));
}

Result<std::optional<double>> AttentionPeer::microseconds(size_t kernel,
                                                          const AttentionCase& wanted) {
  REPRISE_TRY(const auto answer, process_.ask({{"op", wanted.decode ? "decode" : "prefill"},
                                               {"setting", kernel},
                                               {"context", wanted.context},
                                               {"batch", wanted.batch}}));
  if (answer.contains("us") && answer["us"].is_null()) return std::optional<double>();
  REPRISE_TRY(const double time, PeerProcess::field<double>(answer, "us"));
  return std::optional(time);
}

Result<AttentionReport> measure_attention(const AttentionCases& plan, AttentionKernels& kernels,
                                          AttentionPeer* peer) {
  AttentionReport report;
  report.shape = plan.shape;
  report.machine = plan.machine;
  if (peer != nullptr) report.peer = peer->version();
  for (const AttentionCase& wanted : plan.cases) {
    REPRISE_CHECK(measure_case(plan, wanted, kernels, peer, report));
  }
  return report;
}

nlohmann::ordered_json attention_json(const AttentionReport& report) {
  nlohmann::ordered_json json = {{"n_head", report.shape.n_head},
                                 {"n_kv_head", report.shape.n_kv_head},
                                 {"head_dim", report.shape.head_dim},
                                 {"kv_type", report.shape.kv_type},
                                 {"peer", report.peer}};
  auto& rows = json["rows"] = nlohmann::ordered_json::array();
  for (const AttentionRow& row : report.rows) {
    rows.push_back({{"phase", row.phase},
                    {"kernel", row.kernel},
                    {"context", row.context},
                    {"batch", row.batch},
                    {"median_us", row.median_us},
                    {"gb_s", row.gb_s},
                    {"tflop_s", row.tflop_s},
                    {"roof_pct", row.roof_pct},
                    {"vs_best", row.vs_best}});
  }
  return json;
}

std::string attention_markdown(const AttentionReport& report) {
  const AttentionShape& shape = report.shape;
  const MachineRoof& machine = report.machine;
  std::string text = fmt::format(
      "attention of one layer on {}, {} query heads, {} KV heads, head_dim {}, {} KV{}{};\n"
      "measured: read {:.0f} GB/s, bf16 {:.0f} TFLOP/s\n\n"
      "| attention | context | batch | kernel | median us | speed | of roof | vs best peer |\n"
      "|---|---|---|---|---|---|---|---|\n",
      machine.device, shape.n_head, shape.n_kv_head, shape.head_dim, shape.kv_type,
      report.peer.empty() ? "" : "; beside ", report.peer, machine.read_gb_s, machine.bf16_tflop_s);
  for (const AttentionRow& row : report.rows) {
    const std::string speed = row.gb_s > 0 ? fmt::format("{:.0f} GB/s", row.gb_s)
                                           : fmt::format("{:.0f} TFLOP/s", row.tflop_s);
    text += fmt::format("| {} | {} | {} | {} | {:.2f} | {} | {:.0f} % | {} |\n", row.phase,
                        row.context, row.batch, row.kernel, row.median_us, speed, row.roof_pct,
                        row.vs_best > 0 ? fmt::format("{:.2f}x", row.vs_best) : "-");
  }
  return text;
}

}  // namespace reprise
