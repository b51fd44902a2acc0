#include <fmt/format.h>

#include "bench/bench.h"
#include "bench/fusion_bench.h"

namespace reprise {
namespace {

std::string ratio(double value) { return value > 0 ? fmt::format("{:.2f}x", value) : "-"; }
std::string percent(double value) { return value > 0 ? fmt::format("{:.0f} %", value) : "-"; }

std::string where(const BenchReport& report) {
  const std::string& device = report.machine.device;
  return device.empty() ? fmt::format("{} threads", report.threads) : device;
}

std::string speed(double gb_s) {
  return gb_s < 1000 ? fmt::format("{:.1f} GB/s", gb_s) : fmt::format("{:.2f} TB/s", gb_s / 1000);
}

nlohmann::ordered_json tier_json(const KvTier& tier) {
  return {{"limit", tier.limit_bytes},
          {"bytes", tier.bytes},
          {"moved_in", tier.moved_in_bytes},
          {"moved_out", tier.moved_out_bytes}};
}

nlohmann::ordered_json figures_json(const BenchRow& row) {
  auto json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : row.figures) json[name] = value;
  return json;
}

std::string note(const BenchRow& row) {
  std::string text = row.note;
  for (const auto& [name, value] : row.figures) {
    text += fmt::format("{}{} {:.4g}", text.empty() ? "" : ", ", name, value);
  }
  return text;
}

}  // namespace

nlohmann::ordered_json paging_json(const KvPaging& paging) {
  return {{"hits", paging.hits},
          {"late", paging.late},
          {"fetched", paging.fetched},
          {"prefetched", paging.prefetched},
          {"unused", paging.unused},
          {"hit_rate", paging.hit_rate()},
          {"read_bytes", paging.read_bytes},
          {"wait_ms", paging.wait_ms}};
}

nlohmann::ordered_json tiers_json(const KvTiers& kv) {
  return {{"memory", tier_json(kv.memory)}, {"host", tier_json(kv.host)},
          {"disk", tier_json(kv.disk)},     {"paging", paging_json(kv.paging)},
          {"lost_pages", kv.lost_pages},    {"disk_error", kv.disk_error}};
}

nlohmann::ordered_json bench_json(const BenchReport& report) {
  nlohmann::ordered_json json;
  const std::string& device = report.machine.device;
  json["machine"] = {{"device", device.empty() ? "cpu" : device},
                     {"read_gb_s", report.machine.read_gb_s},
                     {"bf16_tflop_s", report.machine.bf16_tflop_s},
                     {"quantised_tflop_s", report.machine.quantised_tflop_s},
                     {"threads", report.threads}};
  json["model"] = {{"name", report.model.name},
                   {"path", report.model.path},
                   {"load_ms", report.model.load_ms},
                   {"weight_bytes", report.model.weight_bytes},
                   {"kv_bytes_per_token", report.model.kv_bytes_per_token}};
  auto& rows = json["rows"] = nlohmann::ordered_json::array();
  for (const BenchRow& row : report.rows) {
    rows.push_back({{"phase", row.phase},
                    {"policy", row.policy},
                    {"context", row.context},
                    {"batch", row.batch},
                    {"median_ms", row.median_ms},
                    {"p99_ms", row.p99_ms},
                    {"tok_s", row.tok_s},
                    {"select_ms", row.select_ms},
                    {"bytes_per_token", row.bytes_per_token},
                    {"index_bytes_per_token", row.index_bytes_per_token},
                    {"flops_per_token", row.flops_per_token},
                    {"memory_gb_s", row.memory_gb_s},
                    {"memory_pct", row.memory_pct},
                    {"roof_gb_s", row.roof_gb_s},
                    {"roof_pct", row.roof_pct},
                    {"vs_full", row.vs_full},
                    {"vs_peer", row.vs_peer},
                    {"peer", row.peer},
                    {"note", row.note},
                    {"figures", figures_json(row)}});
  }
  json["kv_tiers"] = tiers_json(report.kv);
  if (!report.fusion.empty()) json["fusion"] = fusion_json(report);
  if (!report.attention.rows.empty()) json["attention"] = attention_json(report.attention);
  return json;
}

std::string bench_markdown(const BenchReport& report, size_t first_row) {
  std::string text;
  if (first_row == 0) {
    text = fmt::format(
        "{} on {}; measured: read {}, bf16 {:.2f} TFLOP/s, {:.2f} with quantised weights; "
        "load {:.0f} ms\n\n"
        "| phase | context | policy | batch | median ms | p99 ms | select ms | tok/s | of memory |"
        " of roof | vs full | vs peer | note |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        report.model.name, where(report), speed(report.machine.read_gb_s),
        report.machine.bf16_tflop_s, report.machine.quantised_tflop_s, report.model.load_ms);
  }
  for (size_t i = first_row; i < report.rows.size(); ++i) {
    const BenchRow& row = report.rows[i];
    const std::string select = row.select_ms > 0.005 ? fmt::format("{:.2f}", row.select_ms) : "-";
    text += fmt::format(
        "| {} | {} | {} | {} | {:.2f} | {:.2f} | {} | {:.1f} | {} | {} | {} | {} | {} |\n",
        row.phase, row.context, row.policy, row.batch, row.median_ms, row.p99_ms, select, row.tok_s,
        percent(row.memory_pct), percent(row.roof_pct), ratio(row.vs_full), ratio(row.vs_peer),
        note(row));
  }
  return text;
}

}  // namespace reprise
