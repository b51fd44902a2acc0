// A page as one HTML file that needs nothing else: no scripts, style sheet and figures inside.
#pragma once

#include <string>

#include "eval/report/page.h"

namespace reprise::eval {

std::string to_html(const Page& page);

}  // namespace reprise::eval
