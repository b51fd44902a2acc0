// How LongBench v1 scores each of its tasks. The Chinese tasks (multifieldqa_zh, dureader, vcsum,
// lsht, passage_retrieval_zh) are out of scope: most need a word segmenter.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "eval/sample.h"

namespace reprise::eval {

/// The scores of a task's prediction, each the best over the references (0 without any):
///   question answering  f1
///   summaries           rougeL_lb, rougeL, recursion_zeroed (1: the benchmark scores the item 0
///                       because its package recurses too deeply, see summary_rouge_l)
///   trec                classification, classification_quirk
///   passage_count       count;  passage_retrieval_en  retrieval
///   code                edit_sim (Ratcliff-Obershelp), edit_sim_indel
/// The few-shot tasks are judged by their first line. A LongBench-E name (hotpotqa_e) is its task.
/// Empty for a task that is not known.
Scores longbench_scores(std::string_view task, std::string_view prediction,
                        std::span<const std::string> references,
                        std::span<const std::string> classes);

}  // namespace reprise::eval
