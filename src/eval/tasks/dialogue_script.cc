#include "eval/tasks/dialogue_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "eval/tasks/prose.h"

namespace reprise::eval {
namespace {

constexpr size_t kLeastTurns = 6, kMostTurns = 12;
constexpr int kValueDigits = 5;
constexpr size_t kPasteTurn = 2;

constexpr std::array<std::string_view, 4> kSubjects = {
    "the code for the {key} door", "the number of the {key} account",
    "the extension of the {key} office", "the ticket number for the {key} tour"};
constexpr std::string_view kNothing = "Let us go on.";
constexpr std::array<std::string_view, 3> kNoted = {"Noted.", "I will remember that.",
                                                    "All right, I have it."};
constexpr std::array<std::string_view, 3> kRead = {
    "Thank you, I have read it.", "I have read this part.", "Done reading, please go on."};

struct Fact {
  std::string subject, value;
};

class Writer {
 public:
  explicit Writer(Rng& rng) : rng_(rng) {
    turns_ = rng_.between(kLeastTurns, kMostTurns);
    said_.resize(turns_ - 1);
    keys_ = rng_.distinct(turns_ + 1, kAdjectives.size() * kNouns.size());
  }

  Script fact() {
    const Fact fact = new_fact();
    const size_t turn = rng_.between(1, turns_ - 1);
    said_[turn - 1] = fmt::format("Please remember: {} is {}.", fact.subject, fact.value);
    return ask(fact, turns_ - turn);
  }

  Script edit() {
    const Fact before = new_fact();
    const Fact after{before.subject, new_value()};
    const size_t first = rng_.between(1, turns_ - 2), second = rng_.between(first + 1, turns_ - 1);
    said_[first - 1] = fmt::format("Please remember: {} is {}.", before.subject, before.value);
    said_[second - 1] = fmt::format("A change: {} is now {}.", after.subject, after.value);
    Script script = ask(after, turns_ - second);
    script.wrong.push_back(before.value);
    return script;
  }

  Script paste() {
    const Fact fact = new_fact();
    Script script = ask(fact, turns_ - kPasteTurn);
    script.readings = {2 * (kPasteTurn - 1)};
    script.planted = fmt::format("Note that {} is {}.", fact.subject, fact.value);
    script.planted_at = static_cast<double>(rng_.below(101)) / 100.0;
    for (Message& message : script.messages) {
      if (message.content.empty()) message.content = kNothing;
    }
    return script;
  }

  Script list() {
    // One thing per turn, in at least three turns, then one of them is taken off.
    const size_t events = rng_.between(4, turns_ - 2);
    std::vector<size_t> when = rng_.distinct(events, turns_ - 1);
    std::sort(when.begin(), when.end());
    std::vector<std::string> things;
    for (const size_t noun : rng_.distinct(events - 1, kNouns.size())) {
      things.emplace_back(kNouns[noun]);
    }
    for (size_t i = 0; i + 1 < events; ++i) {
      said_[when[i]] = fmt::format("Please add this to my list: {}.", things[i]);
    }
    const size_t removed = rng_.below(things.size());
    said_[when.back()] = fmt::format("Please take this off my list again: {}.", things[removed]);
    Script script = finish("What is on my list now? Name everything, with commas between.");
    script.answer_prefix = "Your list holds:";
    script.wrong = {things[removed]};
    things.erase(things.begin() + static_cast<std::ptrdiff_t>(removed));
    script.expected = things;
    script.lag = turns_ - 1 - when.front();
    return script;
  }

 private:
  // A value that nothing else in this conversation has.
  std::string new_value() {
    std::string value = rng_.digits(kValueDigits);
    while (std::find(values_.begin(), values_.end(), value) != values_.end()) {
      value = rng_.digits(kValueDigits);
    }
    values_.push_back(value);
    return value;
  }

  Fact new_fact() {
    const size_t pair = keys_.back();
    keys_.pop_back();
    const std::string key =
        fmt::format("{} {}", kAdjectives[pair / kNouns.size()], kNouns[pair % kNouns.size()]);
    return {fill(rng_.pick(kSubjects), {{"key", key}}), new_value()};
  }

  Script ask(const Fact& fact, size_t lag) {
    Script script = finish(fmt::format("What is {}? Answer with the number only.", fact.subject));
    script.answer_prefix = fmt::format("{} is", fact.subject);
    script.answer_prefix.front() = 'T';  // every subject begins with "the"
    script.expected = {fact.value};
    script.lag = lag;
    return script;
  }

  // Turns without anything said get another thing's value or text to read.
  Script finish(std::string question) {
    Script script;
    script.turns = turns_;
    for (const std::string& said : said_) {
      const bool other_fact = said.empty() && rng_.below(2) == 0;
      std::string user = said;
      if (other_fact) {
        const Fact fact = new_fact();
        user = fmt::format("By the way, {} is {}.", fact.subject, fact.value);
        script.wrong.push_back(fact.value);
      }
      const bool reading = said.empty();
      if (reading) script.readings.push_back(script.messages.size());
      script.messages.push_back({"user", std::move(user)});
      const auto& replies = reading ? kRead : kNoted;
      script.messages.push_back({"assistant", std::string(rng_.pick(replies))});
    }
    script.messages.push_back({"user", std::move(question)});
    return script;
  }

  Rng& rng_;
  size_t turns_ = 0;               // the last one is the question
  std::vector<std::string> said_;  // [turns - 1], empty where nothing is
  std::vector<size_t> keys_;       // unused pairs of adjective and noun
  std::vector<std::string> values_;
};

}  // namespace

Script write_script(std::string_view kind, Rng& rng) {
  Writer writer(rng);
  if (kind == "edit") return writer.edit();
  if (kind == "list") return writer.list();
  if (kind == "paste") return writer.paste();
  return writer.fact();
}

std::string small_talk(Rng& rng, size_t sentences) {
  constexpr std::array<std::string_view, 4> kForms = {
      "The {a} {b} stood by the {c} all day.", "Nobody had seen the {a} {b} near the {c} before.",
      "Later the {a} {b} was carried past the {c}.",
      "There was a {a} {b} behind the {c}, and it rained."};
  std::string text;
  for (size_t i = 0; i < sentences; ++i) {
    const auto& form = rng.pick(kForms);
    text += fill(form,
                 {{"a", rng.pick(kAdjectives)}, {"b", rng.pick(kNouns)}, {"c", rng.pick(kNouns)}});
    text += ' ';
  }
  return text;
}

}  // namespace reprise::eval
