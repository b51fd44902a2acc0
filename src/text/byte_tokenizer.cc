#include "text/byte_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/byte_level.h"

namespace reprise {

TokenizerData byte_tokenizer(size_t vocab) {
  TokenizerData data;
  data.model = TokenizerModel::kByteBpe;
  data.gguf_pre = "gpt-2";
  data.add_space_prefix = false;
  data.tokens.reserve(vocab);
  for (size_t id = 0; id < vocab; ++id) {
    const char byte = static_cast<char>(id);
    data.tokens.push_back(id < 256 ? to_byte_level({&byte, 1}) : fmt::format("<|{}|>", id));
  }
  data.kinds.assign(vocab, TokenKind::kUnused);
  std::fill_n(data.kinds.begin(), 256, TokenKind::kNormal);
  return data;
}

}  // namespace reprise
