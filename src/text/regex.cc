#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include "base/try.h"
#include "formats/printable.h"

namespace reprise {
namespace {

// Backtracking of one match; runs of 10 MiB of white space need 10 million steps.
constexpr uint32_t kMatchLimit = 100'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kJitStackStart = 32 * 1024;
constexpr size_t kJitStackLimit = 16 * 1024 * 1024;

// Unicode's White_Space, which PCRE2's \s exceeds by U+180E, and Oniguruma's word characters:
// alphabetic (letters, letter numbers, circled letters), marks, digits and connectors.
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169})"
    R"(\x{1F170}-\x{1F189})";

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

bool compiles(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// Rewrites what the two syntaxes read differently.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    for (at_ = 0; at_ < pattern_.size(); ++at_) {
      const char c = pattern_[at_];
      if (c == '\\' && at_ + 1 < pattern_.size()) {
        escape(pattern_[++at_]);
      } else if (in_class_) {
        REPRISE_CHECK(class_character(c));
      } else if (c == '[') {
        open_class();
      } else {
        out_ += c;
      }
    }
    return std::move(out_);
  }

 private:
  void escape(char c) {
    if (c == 's' || c == 'w') {
      const std::string_view members = c == 's' ? kSpace : kWord;
      out_ += in_class_ ? std::string(members) : fmt::format("[{}]", members);
    } else if (!in_class_ && (c == 'S' || c == 'W')) {
      out_ += fmt::format("[^{}]", c == 'S' ? kSpace : kWord);
    } else if ((c != 'p' && c != 'P') || !script(c == 'P')) {
      out_ += '\\';
      out_ += c;
    }
  }

  // PCRE2's \p{Han} has what several scripts share, such as punctuation; \p{sc:Han} has not.
  bool script(bool negated) {
    const std::string_view rest = pattern_.substr(at_ + 1);
    const size_t end = rest.find('}');
    if (!rest.starts_with('{') || end == rest.npos) return false;
    std::string_view name = rest.substr(1, end - 1);
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      negated = !negated;
    }
    const std::string property = fmt::format("\\{}{{sc:{}}}", negated ? 'P' : 'p', name);
    if (!compiles(property)) return false;
    out_ += property;
    at_ += end + 1;
    return true;
  }

  void open_class() {
    in_class_ = true;
    out_ += '[';
    if (at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '^') out_ += pattern_[++at_];
  }

  Status class_character(char c) {
    const std::string_view rest = pattern_.substr(at_);
    const bool posix = rest.starts_with("[:");
    if (rest.starts_with("&&") || (c == '[' && !posix)) {
      return fail(ErrorCode::kUnsupportedTokenizer,
                  "the regular expression {} combines character classes, which is not supported",
                  printable(pattern_));
    }
    const size_t end = posix ? rest.find(":]") : rest.npos;
    if (end != rest.npos) {
      const std::string_view name = rest.substr(0, end + 2);
      if (name == "[:^punct:]") {
        return fail(ErrorCode::kUnsupportedTokenizer,
                    "the regular expression {} has [:^punct:], which is not supported",
                    printable(pattern_));
      }
      out_ += name == "[:punct:]" ? R"(\p{P}\p{S})" : name;
      at_ += end + 1;
      return {};
    }
    in_class_ = c != ']';
    out_ += c;
    return {};
  }

  std::string_view pattern_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
};

size_t character_bytes(std::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) ++bytes;
  return bytes;
}

}  // namespace

struct RegexState::Impl {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackLimit, nullptr);

  Impl() {
    if (context == nullptr) return;
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexState::RegexState() : impl_(std::make_unique<Impl>()) {}
RegexState::RegexState(RegexState&&) noexcept = default;
RegexState& RegexState::operator=(RegexState&&) noexcept = default;
RegexState::~RegexState() = default;

void Regex::Free::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Result<Regex> Regex::build(std::string_view pattern, uint32_t options) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context != nullptr) pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  Regex regex;
  regex.code_.reset(pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | options, &error,
                                  &offset, context.get()));
  if (regex.code_ == nullptr) {
    unsigned char message[120] = {};
    pcre2_get_error_message(error, message, sizeof message);
    return fail(ErrorCode::kUnsupportedTokenizer, "the regular expression {}: {} at byte {}",
                printable(pattern), reinterpret_cast<const char*>(message), offset);
  }
  // Without a JIT for this processor, the interpreter gives the same matches.
  pcre2_jit_compile(static_cast<pcre2_code*>(regex.code_.get()), PCRE2_JIT_COMPLETE);
  return regex;
}

Result<Regex> Regex::compile(std::string_view pattern) {
  REPRISE_TRY(const auto translated, Translator(pattern).run());
  return build(translated, PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

Result<Regex> Regex::literal(std::string_view text) { return build(text, PCRE2_LITERAL); }

void Regex::scan(std::string_view text, RegexState& state, Visit visit) const {
  const auto& [data, context, stack] = *state.impl_;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  size_t done = 0, from = 0;
  while (data != nullptr && from <= text.size()) {
    const int count =
        pcre2_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, data, context);
    if (count < 0) break;
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(data);
    const size_t begin = ovector[0], end = ovector[1];
    if (begin < done || end < begin) break;  // \K can move a match backwards
    if (begin > done) visit(text.substr(done, begin - done), false);
    visit(text.substr(begin, end - begin), true);
    done = end;
    from = end > begin ? end : end + (end < text.size() ? character_bytes(text.substr(end)) : 1);
  }
  if (done < text.size()) visit(text.substr(done), false);
}

std::string Regex::replace(std::string_view text, std::string_view content,
                           RegexState& state) const {
  std::string out;
  out.reserve(text.size());
  scan(text, state, [&](std::string_view part, bool matched) { out += matched ? content : part; });
  return out;
}

}  // namespace reprise
