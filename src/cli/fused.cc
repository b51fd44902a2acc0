#include "cli/fused.h"

#include "base/try.h"
#include "cli/answer.h"
#include "cli/text.h"

namespace reprise::cli {
namespace {

std::string fusion_summary(const FusionReport& report) {
  std::string text = fmt::format(
      "{} of {} chunks loaded ({}) in {:.2f} s: {} rows reused, {} of them computed again, {} "
      "others computed",
      report.chunks - report.missing_chunks - report.damaged_chunks - report.slow_chunks,
      report.chunks, bytes_text(report.loaded_bytes), report.total_ms / 1e3,
      grouped(report.loaded_rows), grouped(report.recomputed_rows), grouped(report.computed_rows));
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
    text += fmt::format("; {} chunks are not in the store: `reprise store add` puts them there",
                        report.missing_chunks);
  }
  return text;
}

}  // namespace

nlohmann::ordered_json fusion_json(const FusionReport& report) {
  return {{"chunks", report.chunks},
          {"missing_chunks", report.missing_chunks},
          {"damaged_chunks", report.damaged_chunks},
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
  REPRISE_TRY(const FusionReport report,
              library.fuse(conversation.session(), prompt, fusion, console.progress()));
  console.end_progress();
  if (const std::string warning = library.take_warning(); !warning.empty()) console.warn(warning);
  REPRISE_TRY(Answer answer, conversation.answer(prompt.tokens(), options));
  answer.timings.ttft_ms += report.total_ms;  // the answer waited for it
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
