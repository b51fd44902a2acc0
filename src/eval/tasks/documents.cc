#include "eval/tasks/documents.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/try.h"
#include "eval/tasks/data_files.h"
#include "eval/tasks/rng.h"

namespace reprise::eval {
namespace {

// Bytes of a text kept apart for one token, so that slices do not overlap; real text has 3 to 5.
constexpr size_t kStripeBytes = 6;

size_t stripe_bytes(const TaskContext& context) { return kStripeBytes * context.context; }
size_t stripes(const TextSource& source, const TaskContext& context) {
  return std::max<size_t>(1, source.text.size() / stripe_bytes(context));
}

// The first beginning of a paragraph at or after `at`, else of a word, in the half stripe there.
size_t slice_begin(std::string_view text, size_t at, size_t half) {
  if (at == 0) return 0;
  const std::string_view near = text.substr(at, half);
  size_t gap = near.find("\n\n");
  if (gap == std::string_view::npos) gap = near.find_first_of(" \n");
  const size_t begin =
      text.find_first_not_of(" \r\n", gap == std::string_view::npos ? at : at + gap);
  return std::min(begin, text.size());
}

// Grows until there are enough tokens: two or three counts.
std::string_view enough(std::string_view text, const TaskContext& context) {
  size_t bytes = 4 * size_t{context.context};
  while (bytes < text.size()) {
    const size_t end = std::min(text.find_first_of(" \n", bytes), text.size());
    const size_t tokens = context.count_tokens(text.substr(0, end));
    if (tokens >= context.context) return text.substr(0, end);
    bytes = end + end * (context.context - tokens) / std::max<size_t>(tokens, 1) + 64;
  }
  return text;
}

// Gives the slices of one group in turn: every source's first, then every source's second, ...
class SliceQueue {
 public:
  SliceQueue(const std::vector<TextSource>& group, const TaskContext& context)
      : group_(group), context_(context) {
    for (const TextSource& source : group) {
      std::vector<size_t> order(stripes(source, context));
      std::iota(order.begin(), order.end(), size_t{0});
      Rng(context.seed, "slices of " + source.name).shuffle(order);
      rounds_ = std::max(rounds_, order.size());
      orders_.push_back(std::move(order));
    }
  }

  std::optional<Document> next() {
    for (; round_ < rounds_; ++round_, source_ = 0) {
      while (source_ < group_.size()) {
        const size_t source = source_++;
        if (round_ < orders_[source].size()) return slice(source, orders_[source][round_]);
      }
    }
    return std::nullopt;
  }

 private:
  Document slice(size_t source, size_t stripe) const {
    const std::string_view text = group_[source].text;
    const size_t width = stripe_bytes(context_);
    const size_t begin = slice_begin(text, stripe * width, width / 4);
    return {fmt::format("{}/{}", group_[source].name, stripe),
            std::string(enough(text.substr(begin), context_))};
  }

  const std::vector<TextSource>& group_;
  const TaskContext& context_;
  std::vector<std::vector<size_t>> orders_;  // [source] -> stripes, shuffled
  size_t rounds_ = 0, round_ = 0, source_ = 0;
};

}  // namespace

Result<std::vector<TextSource>> load_books(const std::filesystem::path& data) {
  const auto folder = data / "books";
  if (data.empty()) return missing(folder / "*.txt");
  std::vector<TextSource> books;
  for (const auto& path : files_below(folder, ".txt")) {
    REPRISE_TRY(std::string text, read_text(path));
    books.push_back(
        {path.lexically_relative(folder).replace_extension().generic_string(), std::move(text)});
  }
  auto wiki = read_text(data / "wikitext2" / "wiki.test.raw");
  if (wiki) {
    books.push_back({"wikitext2", std::move(*wiki)});
  } else if (wiki.error().code != ErrorCode::kFileNotFound) {
    return tl::unexpected<Error>(std::move(wiki.error()));
  }
  if (books.empty()) return missing(folder / "*.txt");
  return books;
}

Result<TextSource> load_essays(const std::filesystem::path& data) {
  TextSource essays{"essays", {}};
  for (const auto& path : files_below(data / "needle" / "PaulGrahamEssays", ".txt")) {
    REPRISE_TRY(const std::string text, read_text(path));
    essays.text += text + "\n\n";
  }
  if (!essays.text.empty()) return essays;
  Record record{{}, (data / "ruler" / "PaulGrahamEssays.json").string()};
  REPRISE_TRY(record.value, read_json(record.where));
  REPRISE_TRY(essays.text, record.text("text"));
  return essays;
}

std::vector<Document> take_slices(const std::vector<std::vector<TextSource>>& groups,
                                  const TaskContext& context, size_t count) {
  std::vector<SliceQueue> queues;
  queues.reserve(groups.size());
  for (const auto& group : groups) queues.emplace_back(group, context);
  std::vector<Document> documents;
  for (bool any = true; any && documents.size() < count;) {
    any = false;
    for (SliceQueue& queue : queues) {
      if (documents.size() == count) break;
      std::optional<Document> document = queue.next();
      if (!document) continue;
      any = true;
      documents.push_back(std::move(*document));
    }
  }
  return documents;
}

}  // namespace reprise::eval
