// `reprise report`: everything that run files hold, as Markdown, HTML and SVG.
#include "eval/report/report.h"

#include <filesystem>

#include "base/system.h"
#include "base/try.h"
#include "cli/command.h"
#include "cli/compare_flags.h"
#include "cli/output_file.h"
#include "eval/report/html.h"
#include "eval/report/markdown.h"
#include "eval/report/speed.h"

namespace reprise::cli {
namespace {

class ReportCommand : public Command {
 public:
  std::string_view name() const override { return "report"; }
  std::string_view summary() const override { return "write a report about evaluated policies"; }
  std::string_view examples() const override {
    return R"(  reprise report run.jsonl                        Markdown on standard output
  reprise report run.jsonl --html report.html     one file with tables and plots
  reprise report run.jsonl --md report.md --svg plots
  reprise report full.jsonl quest.jsonl --equal bytes --html report.html
  reprise report run.jsonl --bench bench.json --html report.html    speed against context, too)";
  }
  void declare(FlagSet& flags) override {
    compare_.declare(flags);
    flags.add_list(
        {"bench", "file that `bench --json` printed, for plots of speed; repeatable", "file"},
        bench_);
    flags.add({"md", "write the report as Markdown to this file", "file"}, markdown_);
    flags.add({"html", "write the report as one HTML file", "file"}, html_);
    flags.add({"svg", "write the plots as files to this folder", "folder"}, svg_);
  }
  Status run(Console& console) override {
    REPRISE_CHECK(compare_.check_output("--md", markdown_));
    REPRISE_CHECK(compare_.check_output("--html", html_));
    if (!html_.empty() && is_one_file(html_, markdown_))
      return fail(ErrorCode::kInvalidArgument, "--md and --html are one file, {}", html_);
    REPRISE_TRY(const eval::Settings settings, compare_.read());
    REPRISE_TRY(const eval::Comparison comparison,
                eval::compare(settings, compare_.options(), console.progress()));
    console.end_progress();
    eval::Page page = eval::report_page(settings, comparison);
    for (const std::string& path : bench_) {
      REPRISE_TRY(const eval::SpeedRun speed, eval::read_speed(path));
      eval::add_speed(speed, page);
    }
    if (!svg_.empty()) REPRISE_CHECK(write_figures(page, console));
    if (!markdown_.empty()) REPRISE_CHECK(write(markdown_, markdown(page), console));
    if (!html_.empty()) REPRISE_CHECK(write(html_, eval::to_html(page), console));
    if (console.json()) return console.print_json(eval::comparison_json(comparison));
    const bool to_files = !svg_.empty() || !markdown_.empty() || !html_.empty();
    return to_files ? Status() : console.print(eval::to_markdown(page));
  }

 private:
  static Status write(const std::string& path, const std::string& text, Console& console) {
    REPRISE_CHECK(write_text_file(path, text));
    console.note(fmt::format("[wrote {}]", path));
    return {};
  }

  // Links to figures are relative to the Markdown file.
  std::string markdown(const eval::Page& page) const {
    if (svg_.empty()) return eval::to_markdown(page);
    const std::filesystem::path folder = std::filesystem::path(markdown_).parent_path();
    const auto link =
        std::filesystem::path(svg_).lexically_proximate(folder.empty() ? "." : folder);
    return eval::to_markdown(page, link.generic_string());
  }

  Status write_figures(const eval::Page& page, Console& console) const {
    std::error_code error;
    std::filesystem::create_directories(svg_, error);
    if (error)
      return fail(ErrorCode::kFileUnwritable, "{}: cannot be created: {}", svg_, error.message());
    for (const auto& block : page.blocks) {
      const auto* figure = std::get_if<eval::Figure>(&block);
      if (figure == nullptr) continue;
      const std::string path = fmt::format("{}/{}.svg", svg_, figure->name);
      REPRISE_CHECK(write_text_file(path, figure->image.finish(true)));
    }
    console.note(fmt::format("[wrote plots to {}]", svg_));
    return {};
  }

  CompareFlags compare_;
  std::vector<std::string> bench_;
  std::string markdown_, html_, svg_;
};

}  // namespace

std::unique_ptr<Command> make_report_command() { return std::make_unique<ReportCommand>(); }

}  // namespace reprise::cli
