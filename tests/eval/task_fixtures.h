// A small --data folder that the test writes itself, and a tokenizer that is easy to reason about.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "eval/task.h"

namespace reprise::eval {

/// Words of up to four letters or digits, and every other visible character, are a token each.
inline size_t count_pieces(std::string_view text) {
  size_t tokens = 0, run = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = std::isalnum(byte) != 0 || byte >= 0x80;
    if (!letter) run = 0;
    if (letter ? run++ % 4 == 0 : std::isspace(byte) == 0) ++tokens;
  }
  return tokens;
}

inline void write_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// Prose of numbered sentences in paragraphs, every one different.
inline std::string numbered_prose(std::string_view name, size_t sentences) {
  std::string text;
  for (size_t i = 0; i < sentences; ++i) {
    text += "In part " + std::to_string(i) + " of " + std::string(name) +
            " the old sailor looked at the sea and said nothing";
    text += i % 3 == 0 ? ", as was his way." : ".";
    text += i % 5 == 4 ? "\n\n" : " ";
  }
  return text;
}

/// Words of letters only, all different: "aka", "akb", ...
inline std::string word_lines(char first, size_t count) {
  std::string lines;
  for (size_t i = 0; i < count; ++i) {
    lines += first;
    for (size_t rest = i + 26 * 26; rest > 0; rest /= 26) {
      lines += static_cast<char>('a' + rest % 26);
    }
    lines += '\n';
  }
  return lines;
}

inline nlohmann::json template_json(const std::string& form, const std::string& prefix,
                                    int tokens) {
  return {{"template", form}, {"answer_prefix", prefix}, {"tokens_to_generate", tokens}};
}

inline void write_ruler(const std::filesystem::path& data) {
  const nlohmann::json tasks = {
      {"niah", template_json("Some special magic {type_needle_v} are hidden.\n{context}\nWhat are "
                             "all the special magic {type_needle_v} for {query}?",
                             " The special magic {type_needle_v} for {query} are", 64)},
      {"variable_tracking",
       template_json("Track the variables.\n\n{context}\nQuestion: which are {query}?",
                     " Answer: {num_v} variables are {query}: ", 30)},
      {"common_words_extraction",
       template_json("A list of words.\n{context}\nQuestion: which 10 are common?",
                     " Answer: these:", 60)},
      {"freq_words_extraction",
       template_json("Coded text. {context}\nQuestion: which three are frequent?",
                     " Answer: these:", 50)},
      {"qa", template_json("Documents.\n\n{context}\n\nQuestion: {query}", " Answer:", 32)}};
  const nlohmann::json templates = {
      {"tasks", tasks},
      {"needle", "One of the special magic {type_needle_v} for {key} is: {value}."},
      {"noise_haystack", "The grass is green. The sky is blue. Here we go."}};
  write_file(data / "ruler/templates.json", templates.dump());
  write_file(data / "ruler/PaulGrahamEssays.json",
             nlohmann::json{{"text", numbered_prose("the essay", 900)}}.dump());
  write_file(data / "ruler/wonderwords/adjectivelist.txt", word_lines('k', 60));
  write_file(data / "ruler/wonderwords/nounlist.txt", word_lines('m', 400));
  write_file(data / "ruler/wonderwords/verblist.txt", word_lines('p', 200));
  std::string oracle;
  nlohmann::json multi = nlohmann::json::array();
  for (int i = 0; i < 60; ++i) {
    const std::string number = std::to_string(i), answer = "Person" + number;
    const std::string text = numbered_prose("record " + number, 4);
    nlohmann::json record = {
        {"question", "who wrote record " + number},
        {"answers", {answer, "The " + answer}},
        {"ctxs", {{{"title", "Record " + number}, {"text", text + " By " + answer + "."}}}}};
    oracle += record.dump() + "\n";
    record["ctxs"].push_back({{"title", ""}, {"text", "Other " + text}});
    multi.push_back(record);
  }
  write_file(data / "fusion/nq-open-oracle.jsonl", oracle);
  write_file(data / "fusion/musique_s.json", multi.dump());
}

inline void write_longbench(const std::filesystem::path& data) {
  nlohmann::json prompts, lengths;
  for (const char* task :
       {"narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "gov_report",
        "qmsum", "multi_news", "trec", "triviaqa", "samsum", "passage_count",
        "passage_retrieval_en", "lcc", "repobench-p"}) {
    prompts[task] = "Read this.\n{context}\nQuestion: {input}\nAnswer:";
    lengths[task] = 32;
  }
  prompts["lcc"] = "Complete this.\n{context}{input}Next line:\n";
  lengths["gov_report"] = 512;
  write_file(data / "longbench/dataset2prompt.json", prompts.dump());
  write_file(data / "longbench/dataset2maxlen.json", lengths.dump());
  const auto record = [](int id, const std::string& answer, const nlohmann::json& classes) {
    return nlohmann::json{{"context", "Long text {input} " + std::to_string(id)},
                          {"input", "What is {context}?"},
                          {"answers", nlohmann::json::array({answer})},
                          {"all_classes", classes},
                          {"language", "en"},
                          {"_id", "id" + std::to_string(id)}}
               .dump() +
           "\n";
  };
  write_file(data / "longbench/hotpotqa.jsonl",
             record(1, "Bob Dylan", nullptr) + record(2, "a blue house", nullptr));
  write_file(data / "longbench/trec.jsonl", record(1, "Date", {"Date", "City", "Food"}));
  write_file(data / "longbench/samsum.jsonl", record(1, "Tom buys a house.", nullptr));
  write_file(data / "longbench/gov_report.jsonl", record(1, "It was a report.", nullptr));
  write_file(data / "longbench/lcc.jsonl", record(1, "    return value", nullptr));
}

inline void write_gsm8k(const std::filesystem::path& data) {
  std::string lines;
  for (int i = 1; i <= 4; ++i) {
    lines +=
        nlohmann::json{{"question", "What is " + std::to_string(i) + " thousand and one?"},
                       {"answer", "It is " + std::to_string(i) + "000+1 = <<" + std::to_string(i) +
                                      "000+1=" + std::to_string(i) + "001>>" + std::to_string(i) +
                                      ",001.\n#### " + std::to_string(i) + ",001"}}
            .dump() +
        "\n";
  }
  write_file(data / "gsm8k/test.jsonl", lines);
}

/// A folder with every file that the tasks read, removed in the end.
class DataFolder {
 public:
  DataFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "reprise-eval-XXXXXX").string();
    path_ = mkdtemp(name.data());
    write_file(path_ / "books/first.txt", numbered_prose("the first book", 700));
    write_file(path_ / "books/more/second.txt", numbered_prose("the second book", 400));
    write_file(path_ / "needle/PaulGrahamEssays/a.txt", numbered_prose("essay a", 300));
    write_file(path_ / "needle/PaulGrahamEssays/b.txt", numbered_prose("essay b", 300));
    write_ruler(path_);
    write_longbench(path_);
    write_gsm8k(path_);
  }
  ~DataFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline TaskContext task_context(const std::filesystem::path& data) {
  TaskContext context;
  context.data = data;
  context.context = 2048;
  context.template_tokens = 20;
  context.count_tokens = count_pieces;
  return context;
}

inline Result<TaskData> load_task(std::string_view name, const TaskContext& context) {
  for (const TaskEntry& entry : task_entries()) {
    if (entry.name == name) return entry.load(context);
  }
  return fail(ErrorCode::kInvalidArgument, "no task {}", name);
}

/// The task's data, or nothing and a failed test.
inline TaskData loaded(std::string_view name, const TaskContext& context) {
  auto data = load_task(name, context);
  EXPECT_TRUE(data) << name << ": " << (data ? "" : data.error().message);
  return data ? std::move(*data) : TaskData{};
}

inline double axis(const Sample& sample, std::string_view name) {
  for (const auto& [key, value] : sample.axes) {
    if (key == name) return value;
  }
  ADD_FAILURE() << sample.id << " has no axis " << name;
  return -1;
}

inline std::string prompt_text(const Sample& sample) {
  std::string text;
  for (const Message& message : sample.messages) text += message.content + "\n";
  return text + sample.answer_prefix;
}

inline size_t occurrences(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) {
    ++count;
  }
  return count;
}

}  // namespace reprise::eval
