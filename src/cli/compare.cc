// `reprise compare`: differences between policies on the same samples.
#include "base/try.h"
#include "cli/command.h"
#include "cli/compare_flags.h"
#include "cli/output_file.h"
#include "eval/report/html.h"
#include "eval/report/markdown.h"
#include "eval/report/report.h"

namespace reprise::cli {
namespace {

class CompareCommand : public Command {
 public:
  std::string_view name() const override { return "compare"; }
  std::string_view summary() const override {
    return "compare evaluated policies on the same samples";
  }
  std::string_view examples() const override {
    return R"(  reprise compare run.jsonl                       every policy against full attention
  reprise compare full.jsonl quest.jsonl          runs that were written to several files
  reprise compare run.jsonl --equal bytes         who is best among those that read as much
  reprise compare run.jsonl --ref random          against another policy
  reprise compare seed1.jsonl seed2.jsonl --pool-seeds
  reprise compare run.jsonl --html compare.html   tables and plots
  reprise compare run.jsonl --json > compare.json)";
  }
  void declare(FlagSet& flags) override {
    compare_.declare(flags);
    flags.add({"html", "write an HTML page with plots too", "file"}, html_);
  }
  Status run(Console& console) override {
    REPRISE_CHECK(compare_.check_output("--html", html_));
    REPRISE_TRY(const eval::Settings settings, compare_.read());
    REPRISE_TRY(const eval::Comparison comparison,
                eval::compare(settings, compare_.options(), console.progress()));
    console.end_progress();
    const eval::Page page = eval::comparison_page(comparison);
    if (!html_.empty()) {
      REPRISE_CHECK(write_text_file(html_, eval::to_html(page)));
      console.note(fmt::format("[wrote {}]", html_));
    }
    return console.json() ? console.print_json(eval::comparison_json(comparison))
                          : console.print(eval::to_markdown(page));
  }

 private:
  CompareFlags compare_;
  std::string html_;
};

}  // namespace

std::unique_ptr<Command> make_compare_command() { return std::make_unique<CompareCommand>(); }

}  // namespace reprise::cli
