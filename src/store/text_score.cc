#include "store/text_score.h"

#include <cmath>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "base/try.h"

namespace reprise {
namespace {

constexpr double kSaturation = 1.2, kLength = 0.75;  // k1 and b, as FTS5's

// Of a query's words, which are phrases to FTS5.
struct Words {
  std::vector<double> weights, counts;  // counts: in the text at hand, else 0
  double mean_length = 0;
};

int count_text(const Fts5ExtensionApi*, Fts5Context*, void* count) {
  ++*static_cast<int64_t*>(count);
  return SQLITE_OK;
}

int weigh(const Fts5ExtensionApi* api, Fts5Context* context, Words& words) {
  sqlite3_int64 texts = 0, tokens = 0;
  if (const int code = api->xRowCount(context, &texts); code != SQLITE_OK) return code;
  if (const int code = api->xColumnTotalSize(context, -1, &tokens); code != SQLITE_OK) return code;
  words.mean_length = static_cast<double>(tokens) / static_cast<double>(texts);
  const int count = api->xPhraseCount(context);
  for (int phrase = 0; phrase < count; ++phrase) {
    int64_t with = 0;
    const int code = api->xQueryPhrase(context, phrase, &with, count_text);
    if (code != SQLITE_OK) return code;
    const auto n = static_cast<double>(with), rest = static_cast<double>(texts - with);
    words.weights.push_back(std::log1p((rest + 0.5) / (n + 0.5)));
  }
  words.counts.resize(words.weights.size());
  return SQLITE_OK;
}

// The query's words, weighed at its first text.
int words_of(const Fts5ExtensionApi* api, Fts5Context* context, Words*& words) {
  words = static_cast<Words*>(api->xGetAuxdata(context, 0));
  if (words != nullptr) return SQLITE_OK;
  auto made = std::make_unique<Words>();
  if (const int code = weigh(api, context, *made); code != SQLITE_OK) return code;
  words = made.get();
  return api->xSetAuxdata(context, made.release(), [](void* w) { delete static_cast<Words*>(w); });
}

int score(const Fts5ExtensionApi* api, Fts5Context* context, double& sum) {
  Words* words = nullptr;
  if (const int code = words_of(api, context, words); code != SQLITE_OK) return code;
  int places = 0, length = 0;
  if (const int code = api->xInstCount(context, &places); code != SQLITE_OK) return code;
  if (const int code = api->xColumnSize(context, -1, &length); code != SQLITE_OK) return code;
  std::vector<size_t> found(static_cast<size_t>(places));
  for (int i = 0; i < places; ++i) {
    int phrase = 0, column = 0, offset = 0;
    const int code = api->xInst(context, i, &phrase, &column, &offset);
    if (code != SQLITE_OK) return code;
    found[static_cast<size_t>(i)] = static_cast<size_t>(phrase);
  }
  for (const size_t word : found) words->counts[word] += 1;
  const double share = 1 - kLength + kLength * length / words->mean_length;
  for (const size_t word : found) {
    const double count = std::exchange(words->counts[word], 0.0);
    sum += words->weights[word] * count * (kSaturation + 1) / (count + kSaturation * share);
  }
  return SQLITE_OK;
}

void text_score(const Fts5ExtensionApi* api, Fts5Context* context, sqlite3_context* result, int,
                sqlite3_value**) {
  double sum = 0;
  int code = SQLITE_NOMEM;
  try {
    code = score(api, context, sum);
  } catch (const std::bad_alloc&) {
  }
  if (code == SQLITE_OK) {
    sqlite3_result_double(result, sum);
  } else {
    sqlite3_result_error_code(result, code);
  }
}

}  // namespace

Status add_text_score(SqlDatabase& database) {
  REPRISE_TRY(fts5_api * api, database.text_search());
  if (api->xCreateFunction(api, "text_score", nullptr, text_score, nullptr) == SQLITE_OK) return {};
  return fail(ErrorCode::kOutOfMemory, "no memory for a function of SQLite's");
}

}  // namespace reprise
