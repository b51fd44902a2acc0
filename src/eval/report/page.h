// What a report consists of, whichever way it is written out: see markdown.h and html.h.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "eval/report/svg.h"

namespace reprise::eval {

struct Heading {
  std::string text;
  int level = 2;
};

struct Paragraph {
  std::string text;
};

struct Bullets {
  std::vector<std::string> items;
};

struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;
  size_t text_columns = 1;  // from this column on, cells are numbers and aligned to the right
};

struct Figure {
  std::string name;  // of its file, without folder and ".svg"
  std::string caption;
  Svg image;
};

using Block = std::variant<Heading, Paragraph, Bullets, Table, Figure>;

/// Text in it comes from data as it is; the writers escape it.
struct Page {
  std::string title;
  std::vector<Block> blocks;

  template <class B>
  void add(B block) {
    blocks.emplace_back(std::in_place_type<B>, std::move(block));
  }
  /// Under a name that no figure has yet and that is short enough for a file.
  void add(Figure figure);
};

}  // namespace reprise::eval
