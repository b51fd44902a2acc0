// How well a text matches the words of a query.
#pragma once

#include "store/sqlite.h"

namespace reprise {

/// Adds text_score(texts) to queries with MATCH: BM25, higher is better. FTS5's own bm25() weighs
/// what half of all texts have with nothing, in a store of few texts most words. A word in n of N
/// texts weighs ln(1 + (N - n + 0.5) / (n + 0.5)), as in Lucene.
Status add_text_score(SqlDatabase& database);

}  // namespace reprise
