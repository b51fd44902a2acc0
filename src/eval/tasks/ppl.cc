// Perplexity by position: slices of books.
#include "base/try.h"
#include "eval/tasks/documents.h"
#include "eval/tasks/tasks.h"

namespace reprise::eval {

Result<TaskData> load_ppl(const TaskContext& context) {
  constexpr size_t kDocuments = 16;
  REPRISE_TRY(std::vector<TextSource> books, load_books(context.data));
  TaskData data;
  data.documents =
      take_slices({std::move(books)}, context, context.limit > 0 ? context.limit : kDocuments);
  return data;
}

}  // namespace reprise::eval
