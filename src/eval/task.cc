#include "eval/task.h"

#include <array>

#include "eval/tasks/tasks.h"

namespace reprise::eval {

std::span<const TaskEntry> task_entries() {
  static constexpr std::array<TaskEntry, 8> kTasks = {{
      {"ppl", "perplexity by position in books", "books/**.txt, wikitext2/wiki.test.raw", "nll",
       load_ppl},
      {"needle", "a number hidden in essays, over lengths and depths",
       "needle/PaulGrahamEssays/*.txt, or ruler/PaulGrahamEssays.json, or books/**.txt", "hit",
       load_needle},
      {"passkey", "a number among sentences that repeat, over lengths and depths", "", "hit",
       load_passkey},
      {"ruler", "the 13 tasks of RULER, made here (ruler-native: not the published samples)",
       "ruler/{templates.json, PaulGrahamEssays.json, wonderwords/*.txt}, "
       "fusion/{nq-open-oracle.jsonl, musique_s.json}",
       "match", load_ruler},
      {"longbench", "the 16 English and code tasks of LongBench",
       "longbench/{dataset2prompt.json, dataset2maxlen.json, TASK.jsonl}", "score", load_longbench,
       false},
      {"gsm8k", "grade-school problems with eight worked examples", "gsm8k/test.jsonl", "strict",
       load_gsm8k, false},
      {"dialogue", "facts, changes and lists over the turns of a conversation",
       "books/**.txt for the turns between, where they are there", "recall", load_dialogue},
      {"fidelity", "every next-token distribution against full attention's",
       "books/**.txt, needle/ or ruler/ essays, longbench/*.jsonl, as far as they are there", "kl",
       load_fidelity},
  }};
  return kTasks;
}

}  // namespace reprise::eval
