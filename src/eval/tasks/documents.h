// Long texts below --data, and slices of them that fill the context.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "eval/task.h"

namespace reprise::eval {

struct TextSource {
  std::string name;  // of the file, without its ending
  std::string text;
};

/// books/**.txt and wikitext2/wiki.test.raw, as far as they are there; kFileNotFound when none is.
Result<std::vector<TextSource>> load_books(const std::filesystem::path& data);
/// The essays of the needle test joined to one text, from needle/ or ruler/; kFileNotFound.
Result<TextSource> load_essays(const std::filesystem::path& data);

/// Up to count slices of context.context tokens or a little more, each from the beginning of a
/// paragraph and without overlap; which ones is decided by the seed and never by count. Groups
/// take turns, and sources inside a group. Fewer when the texts are used up. A text that is shorter
/// than the context is given whole. Ids are "SOURCE/NUMBER".
std::vector<Document> take_slices(const std::vector<std::vector<TextSource>>& groups,
                                  const TaskContext& context, size_t count);

}  // namespace reprise::eval
