#include "question_items.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

namespace reprise {
namespace {

using nlohmann::json;

std::vector<std::string> texts_of(const json& value) {
  if (value.is_string()) return {value};
  std::vector<std::string> texts;
  for (const json& part : value) {
    for (std::string& text : texts_of(part)) texts.push_back(std::move(text));
  }
  return texts;
}

}  // namespace

std::vector<Item> read_items(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  json list = json::array();
  if (text.starts_with('[')) {
    list = json::parse(text);
  } else {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) list.push_back(json::parse(line));
  }
  std::vector<Item> items;
  for (const json& one : list) {
    Item& item = items.emplace_back();
    item.question = one.contains("question") ? one["question"] : one["query"];
    item.answers = texts_of(one.contains("answers") ? one["answers"] : one["answer"]);
    if (one.contains("ctxs")) {
      for (const json& passage : one["ctxs"]) {
        const std::string title = passage.value("title", "");
        item.passages.push_back((title.empty() ? "" : title + "\n") + std::string(passage["text"]));
      }
    } else {
      for (const char* kind : {"positive", "negative"}) {
        for (auto& passage : texts_of(one[kind])) item.passages.push_back(std::move(passage));
      }
    }
  }
  return items;
}

std::vector<std::string> passages_of(const std::vector<Item>& items, size_t index, size_t count) {
  std::vector<std::string> passages = items[index].passages;
  for (size_t other = index + 1; passages.size() < count; ++other) {
    for (const auto& passage : items[other % items.size()].passages) passages.push_back(passage);
  }
  passages.resize(count);
  std::rotate(passages.begin(), passages.end() - static_cast<std::ptrdiff_t>(index * 3 % count),
              passages.end());
  return passages;
}

}  // namespace reprise
