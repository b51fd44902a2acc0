// Loads a model, asks it one question about a text, prints the answer as it is made.
//   build/hello [model] < text
#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "reprise/engine.h"

int main(int argc, char** argv) {
  reprise::EngineOptions options;
  if (argc > 1) options.model = argv[1];
  auto engine = reprise::Engine::load(options);
  if (!engine) return std::cerr << engine.error().message << '\n', 1;
  auto session = (*engine)->open("full");
  if (!session) return std::cerr << session.error().message << '\n', 1;

  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  const reprise::Message question{"user", text + "\n\nSummarise this in one sentence."};
  auto prompt = (*engine)->chat_prompt({&question, 1});
  if (!prompt) return std::cerr << prompt.error().message << '\n', 1;

  reprise::Request request;
  request.prompt = *prompt;
  request.max_tokens = 100;
  request.on_token = [](const reprise::TokenEvent& event) {
    std::cout << event.text << std::flush;
    return true;
  };
  auto answer = (*session)->generate(request);
  if (!answer) return std::cerr << answer.error().message << '\n', 1;
  std::printf("\n%zu tokens, %.1f per second\n", answer->tokens.size(),
              answer->timings.decode_tok_s);
}
