#include "cli/fused.h"

#include <algorithm>

#include "base/try.h"
#include "cli/answer.h"
#include "cli/text.h"

namespace reprise::cli {
namespace {

std::string fusion_summary(const FusionReport& report) {
  std::string text = fmt::format(
      "{} of {} chunks loaded ({}) in {:.2f} s: {} rows, {} of them computed again, {} others "
      "computed",
      report.loaded_chunks, report.chunks, bytes_text(report.loaded_bytes), report.total_ms / 1e3,
      grouped(report.loaded_rows), grouped(report.recomputed_rows), grouped(report.computed_rows));
  if (report.reused_rows > 0) {
    text += fmt::format("; the prefix cache had {} rows", grouped(report.reused_rows));
  }
  if (report.fetched_chunks > 0) {
    text += fmt::format("; {} chunks came from the shared store", report.fetched_chunks);
  }
  if (report.rounded_chunks > 0) {
    text += fmt::format("; {} chunks are kept in q8_0", report.rounded_chunks);
  }
  if (report.damaged_chunks > 0) {
    text += fmt::format("; {} chunks were damaged and were computed", report.damaged_chunks);
  }
  if (report.slow_chunks > 0) {
    text += fmt::format(
        "; {} chunks were computed, since reading them would have taken {:.2f} s and not {:.2f}",
        report.slow_chunks, report.reading_ms / 1e3, report.computing_ms / 1e3);
  }
  if (report.missing_chunks > 0) {
    text += fmt::format(
        "; {} chunks are not in the store in the form asked for (model, --kv-type, --store-lead, "
        "--chunk-tokens): `reprise store add` with the same options puts them there",
        report.missing_chunks);
  }
  return text;
}

// The answer waited for the fusion, and what that computed was not reused. A policy may have had
// more computed again.
void add_fusion(const FusionReport& report, Answer& answer) {
  Timings& t = answer.timings;
  Counters& c = answer.counters;
  const uint64_t kept = report.reused_rows + report.loaded_rows - report.recomputed_rows;
  c.reused_tokens = std::min<uint64_t>(c.reused_tokens, kept);
  t.ttft_ms += report.total_ms;
  t.prefill_ms += report.total_ms;
  const auto computed = static_cast<double>(c.prompt_tokens - c.reused_tokens);
  t.prefill_tok_s = t.prefill_ms > 0 ? computed * 1e3 / t.prefill_ms : 0;
}

}  // namespace

nlohmann::ordered_json fusion_json(const FusionReport& report) {
  return {{"chunks", report.chunks},
          {"missing_chunks", report.missing_chunks},
          {"damaged_chunks", report.damaged_chunks},
          {"loaded_chunks", report.loaded_chunks},
          {"rounded_chunks", report.rounded_chunks},
          {"fetched_chunks", report.fetched_chunks},
          {"slow_chunks", report.slow_chunks},
          {"prompt_tokens", report.prompt_tokens},
          {"reused_rows", report.reused_rows},
          {"loaded_rows", report.loaded_rows},
          {"recomputed_rows", report.recomputed_rows},
          {"mean_position", report.mean_position},
          {"computed_rows", report.computed_rows},
          {"loaded_bytes", report.loaded_bytes},
          {"look_up_ms", report.look_up_ms},
          {"wait_ms", report.wait_ms},
          {"place_ms", report.place_ms},
          {"select_ms", report.select_ms},
          {"reading_ms", report.reading_ms},
          {"computing_ms", report.computing_ms},
          {"total_ms", report.total_ms}};
}

Status answer_fused(Conversation& conversation, Library& library, const PartedPrompt& prompt,
                    const std::string& fusion, const RequestOptions& options,
                    const nlohmann::ordered_json& extra, Console& console) {
  auto fused = library.fuse(conversation.session(), prompt, fusion, console.progress());
  console.end_progress();
  warn_of(library, console);
  REPRISE_TRY(const FusionReport report, fused);
  REPRISE_TRY(Answer answer, conversation.answer(prompt.tokens(), options));
  add_fusion(report, answer);
  if (answer.finish == FinishReason::kCancelled) console.stopped();
  if (console.json()) {
    auto json = answer_json(answer, conversation.model());
    json["fusion"] = fusion_json(report);
    if (!extra.empty()) json.update(extra);
    return console.print_json(json);
  }
  if (const std::string remark = finish_remark(answer, conversation.model()); !remark.empty()) {
    console.note(fmt::format("[{}]", remark));
  }
  console.note(fmt::format("[{}]", fusion_summary(report)));
  console.note(fmt::format("[{}]", answer_summary(answer, conversation.model())));
  return {};
}

}  // namespace reprise::cli
