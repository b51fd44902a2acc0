// A page as Markdown.
#pragma once

#include <string>
#include <string_view>

#include "eval/report/page.h"

namespace reprise::eval {

/// Tables are aligned, so that they can be read as they are. figure_folder: where figures lie as
/// files, relative to the text; empty leaves figures out.
std::string to_markdown(const Page& page, std::string_view figure_folder = {});
std::string to_markdown(const Table& table);

}  // namespace reprise::eval
