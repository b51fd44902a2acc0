// Tables of methods, by the type of the value.
#pragma once

#include <span>

#include "text/jinja/native.h"

namespace reprise::jinja {

std::span<const Native> text_methods();  ///< of strings: those that make other strings
std::span<const Native> text_queries();  ///< of strings: those that look for something
std::span<const Native> list_methods();  ///< of lists and tuples
std::span<const Native> dict_methods();

}  // namespace reprise::jinja
