#include "eval/tasks/prompt_size.h"

#include <algorithm>
#include <cmath>

namespace reprise::eval {
namespace {

constexpr int kInterpolations = 6;  // then bisection

// Where a straight line through the last two points reaches the wanted tokens.
size_t interpolate(size_t units, double tokens, size_t other_units, double other_tokens,
                   double wanted) {
  const double slope =
      (tokens - other_tokens) / (static_cast<double>(units) - static_cast<double>(other_units));
  const double next = static_cast<double>(units) + (wanted - tokens) / std::max(slope, 1e-3);
  return static_cast<size_t>(std::clamp(next, 0.0, 1e15));
}

}  // namespace

Result<std::vector<uint32_t>> prompt_lengths(const TaskContext& context,
                                             std::span<const uint32_t> defaults) {
  std::vector<uint32_t> lengths = context.lengths;
  for (const uint32_t length : lengths) {
    if (length <= context.context) continue;
    return fail(ErrorCode::kContextExceeded,
                "length {} does not fit in the context of {} tokens: raise --ctx or ask for less",
                length, context.context);
  }
  if (!lengths.empty()) {
    std::sort(lengths.begin(), lengths.end());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
    return lengths;
  }
  for (const uint32_t length : defaults) {
    if (length <= context.context) lengths.push_back(length);
  }
  if (lengths.empty()) lengths.push_back(context.context);
  return lengths;
}

Result<UnitSearch> text_budget(std::string_view name, const TaskContext& context, uint32_t length,
                               uint32_t max_tokens) {
  const uint32_t rest = max_tokens + context.template_tokens;
  if (length <= rest) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: length {} leaves no room for a prompt: answer and template take {}", name,
                length, rest);
  }
  UnitSearch search;
  search.limit = length - rest;
  // A little above 0.95, because counting pieces and counting the whole may differ by a few.
  const auto enough = static_cast<size_t>(std::ceil(0.96 * length));
  search.floor = enough > rest ? enough - rest : 0;
  return search;
}

Result<Fitted> fit_units(std::string_view name, const UnitSearch& search,
                         const TokenCounter& count_tokens,
                         const std::function<std::string(size_t)>& text) {
  const size_t least_tokens = count_tokens(text(search.least));
  if (least_tokens > search.limit) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: the shortest prompt takes {} tokens, {} are left: ask for longer --lengths",
                name, least_tokens, search.limit);
  }
  size_t low = search.least, low_tokens = least_tokens, high = search.most + 1;
  const double wanted = 0.5 * static_cast<double>(search.floor + search.limit);
  size_t units = search.guess;
  for (int round = 0; low_tokens < search.floor && low + 1 < high; ++round) {
    if (round >= kInterpolations) units = low + (high - low) / 2;
    units = std::clamp(units, low + 1, high - 1);
    const size_t tokens = count_tokens(text(units));
    const size_t next = interpolate(units, static_cast<double>(tokens), search.least,
                                    static_cast<double>(least_tokens), wanted);
    if (tokens <= search.limit) {
      low = units;
      low_tokens = tokens;
    } else {
      high = units;
    }
    units = next;
  }
  if (low == search.most && low_tokens < search.floor) {
    return fail(ErrorCode::kInvalidArgument,
                "{}: its files hold text for {} tokens only, {} are needed: ask for shorter "
                "--lengths",
                name, low_tokens, search.floor);
  }
  return Fitted{low, low_tokens};
}

}  // namespace reprise::eval
