#include "eval/metrics/longbench_metrics.h"

#include <algorithm>
#include <cstddef>

#include "eval/metrics/edit_similarity.h"
#include "eval/metrics/matching.h"
#include "eval/metrics/qa_f1.h"
#include "eval/metrics/rouge.h"
#include "eval/metrics/words.h"

namespace reprise::eval {
namespace {

using Classes = std::span<const std::string>;

Scores question_scores(std::string_view prediction, std::string_view reference, Classes) {
  return {{"f1", qa_f1(prediction, reference)}};
}

Scores summary_scores(std::string_view prediction, std::string_view reference, Classes) {
  const SummaryRougeL summary = summary_rouge_l(prediction, reference);
  return {{"rougeL_lb", summary.f},
          {"rougeL", rouge_l(prediction, reference)},
          {"recursion_zeroed", summary.recursion_fails ? 1.0 : 0.0}};
}

Scores class_scores(std::string_view prediction, std::string_view reference, Classes classes) {
  return {{"classification", classification(prediction, reference, classes, false)},
          {"classification_quirk", classification(prediction, reference, classes, true)}};
}

Scores count_scores(std::string_view prediction, std::string_view reference, Classes) {
  return {{"count", count_score(prediction, reference)}};
}

Scores retrieval_scores(std::string_view prediction, std::string_view reference, Classes) {
  return {{"retrieval", retrieval(prediction, reference)}};
}

Scores code_scores(std::string_view prediction, std::string_view reference, Classes) {
  const std::string_view line = code_line(prediction);
  return {{"edit_sim", edit_similarity(line, reference, EditRatio::kRatcliffObershelp)},
          {"edit_sim_indel", edit_similarity(line, reference, EditRatio::kIndel)}};
}

struct Metric {
  std::string_view task;
  Scores (*score)(std::string_view prediction, std::string_view reference, Classes classes);
  bool first_line = false;
};

constexpr Metric kMetrics[] = {
    {"narrativeqa", question_scores},
    {"qasper", question_scores},
    {"multifieldqa_en", question_scores},
    {"hotpotqa", question_scores},
    {"2wikimqa", question_scores},
    {"musique", question_scores},
    {"gov_report", summary_scores},
    {"qmsum", summary_scores},
    {"multi_news", summary_scores},
    {"trec", class_scores, true},
    {"triviaqa", question_scores, true},
    {"samsum", summary_scores, true},
    {"passage_count", count_scores},
    {"passage_retrieval_en", retrieval_scores},
    {"lcc", code_scores},
    {"repobench-p", code_scores},
};

}  // namespace

Scores longbench_scores(std::string_view task, std::string_view prediction,
                        std::span<const std::string> references,
                        std::span<const std::string> classes) {
  if (task.ends_with("_e")) task.remove_suffix(2);
  const auto metric = std::find_if(std::begin(kMetrics), std::end(kMetrics),
                                   [&](const Metric& entry) { return entry.task == task; });
  if (metric == std::end(kMetrics)) return {};
  if (metric->first_line) prediction = lines_after_newlines(prediction).front();
  // An empty reference scores 0 or is beaten by none: it names the scores.
  Scores best = metric->score(prediction, {}, classes);
  for (auto& [name, value] : best) value = 0.0;
  for (const std::string& reference : references) {
    const Scores scores = metric->score(prediction, reference, classes);
    for (size_t i = 0; i < best.size(); ++i) {
      best[i].second = std::max(best[i].second, scores[i].second);
    }
  }
  return best;
}

}  // namespace reprise::eval
