#include "eval/report/html.h"

#include <fmt/format.h>

namespace reprise::eval {
namespace {

constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--text:#1b1f24;--soft:#57606a;--paper:#fff;--rule:#d4d9df;
--stripe:#f5f7f9}
@media (prefers-color-scheme:dark){:root{--text:#e4e7eb;--soft:#9aa4b0;--paper:#14171c;
--rule:#343a42;--stripe:#1b1f26}}
body{font:15px/1.5 system-ui,"DejaVu Sans",sans-serif;color:var(--text);background:var(--paper);
max-width:92rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.25rem;margin-top:2.2rem;border-bottom:1px solid var(--rule)}
h3{font-size:1.05rem;margin-top:1.6rem}
.scroll{overflow-x:auto;margin:1rem 0}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:.28rem .5rem;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
th{color:var(--soft);white-space:nowrap}tbody tr:nth-child(even){background:var(--stripe)}
.n{text-align:right;white-space:nowrap}
figure{display:inline-block;margin:.6rem 1rem .6rem 0;vertical-align:top}
figcaption{color:var(--soft);font-size:13px;max-width:46rem}
)";

struct Writer {
  std::string out;

  void operator()(const Heading& heading) {
    out += fmt::format("<h{0}>{1}</h{0}>\n", heading.level, escape_markup(heading.text));
  }
  void operator()(const Paragraph& paragraph) {
    out += fmt::format("<p>{}</p>\n", escape_markup(paragraph.text));
  }
  void operator()(const Bullets& bullets) {
    out += "<ul>\n";
    for (const std::string& item : bullets.items)
      out += fmt::format("<li>{}</li>\n", escape_markup(item));
    out += "</ul>\n";
  }
  void operator()(const Table& table) {
    out += "<div class=\"scroll\"><table>\n<thead>";
    row(table, table.head, "th");
    out += "</thead>\n<tbody>\n";
    for (const auto& cells : table.rows) row(table, cells, "td");
    out += "</tbody></table></div>\n";
  }
  void operator()(const Figure& figure) {
    out += fmt::format("<figure>{}<figcaption>{}</figcaption></figure>\n",
                       figure.image.finish(false), escape_markup(figure.caption));
  }

  void row(const Table& table, const std::vector<std::string>& cells, std::string_view tag) {
    out += "<tr>";
    for (size_t i = 0; i < cells.size(); ++i) {
      out += fmt::format("<{0}{1}>{2}</{0}>", tag, i < table.text_columns ? "" : " class=\"n\"",
                         escape_markup(cells[i]));
    }
    out += "</tr>\n";
  }
};

}  // namespace

std::string to_html(const Page& page) {
  Writer writer;
  for (const auto& block : page.blocks) std::visit(writer, block);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}{2}</style></head>\n<body>\n<h1>{0}</h1>\n{3}</body></html>\n",
      escape_markup(page.title), kStyle, plot_style(), writer.out);
}

}  // namespace reprise::eval
