// Needles in one text of any length, which is read once: every question is asked of a session that
// holds the text's KV.
//
//     cmake --build build --target long_needles
//     build/long_needles DEVICE POLICY TOKENS NEEDLES CHUNK FILE...
//     build/long_needles cuda reattention:stride=16,chunk=1024 4M 10 1024 books/*.txt
//
// TOKENS (K and M are 2^10 and 2^20) of the files, again from the first where they end, and
// NEEDLES sentences, each a number of another kind, at even depths. CHUNK: prompt rows of a pass
// (--prefill-chunk). REPRISE_MODEL in the environment names another model. Prints what reading
// took, then a line for each needle.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "eval/metrics/matching.h"
#include "eval/tasks/rng.h"
#include "reprise/engine.h"

using namespace reprise;

namespace {

constexpr uint32_t kAnswerTokens = 16;
constexpr std::string_view kIntroduction =
    "Some facts are hidden in the following text. Memorize them: I will ask for them "
    "afterwards.\n\n";

// Unlike each other, as a small model mixes up needles that differ in a name.
constexpr std::string_view kSubjects[] = {
    "special magic number for the purple elephant",
    "telephone number of the night watchman",
    "combination of the safe in the museum",
    "serial number of the silver telescope",
    "postal code of the village of Elmsworth",
    "weight in grams of the fallen meteorite",
    "licence plate of the green tractor",
    "price in pounds of the painted violin",
    "number of the locker at the railway station",
    "secret password of the Copper Lantern inn",
    "height in feet of the Marrow lighthouse",
    "account number of the baker's widow",
    "number of bees in the glass hive",
    "depth in fathoms of the Gannet trench",
    "ticket number of the lost umbrella",
    "pages of the unfinished atlas",
};

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "long_needles: {}\n", result.error().message);
  std::exit(1);
}

size_t count_of(const std::string& text) {
  size_t end = 0;
  const size_t count = std::stoull(text, &end);
  const char unit = end < text.size() ? text[end] : ' ';
  return unit == 'K' ? count << 10 : unit == 'M' ? count << 20 : count;
}

using Tokens = std::vector<int32_t>;

void append(Tokens& to, const Tokens& from) { to.insert(to.end(), from.begin(), from.end()); }

struct Needle {
  std::string_view subject;
  std::string value;
  double depth = 0.0;
};

// At the middles of equal parts of the text.
std::vector<Needle> make_needles(size_t count) {
  if (count > std::size(kSubjects)) {
    must<int>(fail(ErrorCode::kInvalidArgument, "there are {} kinds of needles; ask for fewer",
                   std::size(kSubjects)));
  }
  std::vector<Needle> needles;
  eval::Rng rng(1, "long needles");
  for (size_t i = 0; i < count; ++i) {
    const double depth = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    needles.push_back({kSubjects[i], rng.digits(7), depth});
  }
  return needles;
}

// The files' tokens, as often as it takes, with the needles behind the ends of sentences.
Tokens make_text(const Engine& engine, const std::vector<std::string>& files, size_t count,
                 std::vector<Needle>& needles) {
  Tokens material, text;
  for (const std::string& file : files) {
    std::ifstream stream(file);
    const std::string content{std::istreambuf_iterator<char>(stream), {}};
    append(material, engine.tokenize(content, false, false));
  }
  if (material.empty()) must<int>(fail(ErrorCode::kFileNotFound, "the files hold no text"));
  const Tokens stop = engine.tokenize(".", false, false);
  size_t next = 0;
  for (size_t i = 0; text.size() < count; ++i) {
    text.push_back(material[i % material.size()]);
    if (next == needles.size() || text.back() != stop.back()) continue;
    if (static_cast<double>(text.size()) < needles[next].depth * static_cast<double>(count)) {
      continue;
    }
    Needle& needle = needles[next++];
    needle.depth = static_cast<double>(text.size()) / static_cast<double>(count);
    const std::string sentence = fmt::format(" The {} is {}.", needle.subject, needle.value);
    append(text, engine.tokenize(sentence, false, false));
  }
  return text;
}

// What the chat template puts before and after a user's words.
struct Frame {
  Tokens head, tail;

  explicit Frame(const Engine& engine) {
    const Message a = {"user", "a"}, b = {"user", "b"};
    const Tokens one = must(engine.chat_prompt({&a, 1})), other = must(engine.chat_prompt({&b, 1}));
    const auto first = std::mismatch(one.begin(), one.end(), other.begin()).first;
    head.assign(one.begin(), first);
    tail.assign(first + 1, one.end());
  }
};

Answer answer_of(Session& session, const Tokens& prompt, uint32_t tokens) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = tokens;
  size_t shown = 0;
  request.on_progress = [&](const Progress& progress) {
    const size_t share = progress.total > 0 ? progress.done * 20 / progress.total : 0;
    if (share > shown && tokens == 1) fmt::print(stderr, "{} %\n", share * 5);
    shown = std::max(shown, share);
    return true;
  };
  return must(session.generate(request));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 6) {
    fmt::print(stderr, "long_needles DEVICE POLICY TOKENS NEEDLES CHUNK FILE...\n");
    return 2;
  }
  EngineOptions options;
  options.device = words[0];
  options.chunk = static_cast<uint32_t>(count_of(words[4]));
  options.batch = 1;
  if (const char* model = std::getenv("REPRISE_MODEL")) options.model = model;
  const auto engine = must(Engine::load(options));
  std::vector<Needle> needles = make_needles(count_of(words[3]));
  const Tokens text =
      make_text(*engine, {words.begin() + 5, words.end()}, count_of(words[2]), needles);
  const Frame frame(*engine);
  Tokens read = frame.head;
  append(read, engine->tokenize(kIntroduction, false, false));
  append(read, text);
  const auto session = must(engine->open(words[1]));
  const Answer first = answer_of(*session, read, 1);
  fmt::print("{} tokens read in {:.1f} s, {:.0f} tokens/s, KV {:.1f} GB\n", read.size(),
             first.timings.prefill_ms * 1e-3, first.timings.prefill_tok_s,
             static_cast<double>(first.memory.kv_bytes) * 1e-9);
  size_t hits = 0;
  for (const Needle& needle : needles) {
    const std::string question =
        fmt::format("\n\nWhat is the {} that the text mentions?", needle.subject);
    Tokens prompt = read;
    append(prompt, engine->tokenize(question, false, false));
    append(prompt, frame.tail);
    append(prompt, engine->tokenize(fmt::format("The {} is", needle.subject), false, false));
    const Answer answer = answer_of(*session, prompt, kAnswerTokens);
    const bool hit = eval::needle_hit(answer.text, needle.value);
    hits += hit ? 1 : 0;
    fmt::print("depth {:5.1f} % {} wanted {}, {}: {:?}, {:.2f} ms a token\n", 100 * needle.depth,
               hit ? "hit " : "miss", needle.value, needle.subject, answer.text,
               answer.timings.tpot_p50_ms);
  }
  fmt::print("{} of {} found\n", hits, needles.size());
  return 0;
}
