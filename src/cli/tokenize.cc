// `reprise tokenize`: text to token ids and pieces.
#include "base/try.h"
#include "cli/command.h"
#include "cli/model_file.h"
#include "cli/request_flags.h"
#include "cli/text.h"
#include "text/tokenizer.h"

namespace reprise::cli {
namespace {

class TokenizeCommand : public Command {
 public:
  std::string_view name() const override { return "tokenize"; }
  std::string_view summary() const override { return "show how a text is cut into tokens"; }
  std::string_view examples() const override {
    return R"(  reprise tokenize -p "Hello, world"
  reprise tokenize --count -f report.txt          does it fit the context?
  reprise tokenize --parse-special -p "<|im_start|>user"
  echo "Hello" | reprise tokenize -f - --json)";
  }
  void declare(FlagSet& flags) override {
    flags.add({"prompt", "text to cut", "text"}, text_);
    flags.add_list({"file", "file to cut; repeatable, - is standard input", "file"}, files_);
    flags.add({"lossy", "replace bytes of files that are not UTF-8 instead of stopping"}, lossy_);
    flags.add({"count", "print only the number of tokens"}, count_);
    flags.add({"parse-special", "read special tokens in the text as such"}, parse_special_);
    visit_options(engine_, [&](const OptionSpec& spec, auto& field) {
      if (spec.name == "model") flags.add(spec, field);
    });
  }
  Status run(Console& console) override {
    REPRISE_CHECK(check_text("--prompt", text_));
    REPRISE_TRY(std::string text, read_documents(files_, lossy_));
    text = document_message(text, text_);
    if (text.empty() && files_.empty())
      return fail(ErrorCode::kEmptyPrompt, "there is no text; give it with -p TEXT or -f FILE");
    REPRISE_TRY(const ModelFile file, ModelFile::open(engine_.model));
    REPRISE_TRY(TokenizerData data, file.tokenizer());
    REPRISE_TRY(const auto tokenizer, Tokenizer::create(std::move(data)));
    const auto tokens =
        tokenizer->encode(text, {.add_special = false, .parse_special = parse_special_});
    REPRISE_CHECK(console.reached({"tokenize", text.size(), text.size(), "bytes"}));
    if (console.json()) return console.print_json(as_json(*tokenizer, tokens));
    if (count_) return console.print(fmt::format("{}\n", tokens.size()));
    std::string out;
    for (const int32_t token : tokens)
      out += fmt::format("{:>8}  {}\n", token, quoted(piece(*tokenizer, token)));
    return console.print(out);
  }

 private:
  static std::string piece(const Tokenizer& tokenizer, int32_t token) {
    return tokenizer.is_special(token) ? tokenizer.decode({&token, 1}, true)
                                       : std::string(tokenizer.token_bytes(token));
  }

  static std::string quoted(std::string_view bytes) {
    std::string text;
    for (const char c : bytes) {
      if (c == '"' || c == '\\') text += '\\';
      text += c;
    }
    return fmt::format("\"{}\"", escaped(text));
  }

  nlohmann::ordered_json as_json(const Tokenizer& tokenizer,
                                 const std::vector<int32_t>& tokens) const {
    nlohmann::ordered_json json = {{"count", tokens.size()}};
    if (count_) return json;
    json["tokens"] = nlohmann::ordered_json::array();
    for (const int32_t token : tokens)
      json["tokens"].push_back({{"id", token}, {"text", piece(tokenizer, token)}});
    return json;
  }

  EngineOptions engine_;
  std::string text_;
  std::vector<std::string> files_;
  bool lossy_ = false, count_ = false, parse_special_ = false;
};

}  // namespace

std::unique_ptr<Command> make_tokenize_command() { return std::make_unique<TokenizeCommand>(); }

}  // namespace reprise::cli
