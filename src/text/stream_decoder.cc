#include "text/tokenizer.h"
#include "text/utf8.h"

namespace reprise {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool keep_special)
    : tokenizer_(tokenizer), keep_special_(keep_special) {}

std::string StreamDecoder::push(int32_t token) {
  if (tokenizer_.is_special(token) && !keep_special_) return {};
  pending_ += first_ ? tokenizer_.first_token_bytes(token) : tokenizer_.token_bytes(token);
  first_ = false;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Unit unit = utf8_unit(rest);
    if (unit.open) break;
    text += unit.valid ? rest.substr(0, unit.bytes) : kReplacementCharacter;
    rest.remove_prefix(unit.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string StreamDecoder::finish() {
  const std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  first_ = true;
  return text;
}

}  // namespace reprise
