"""Contexts that the chat templates of the tests are rendered with."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather at a place, with <units> & \"quotes\".",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City and country"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "array", "items": {"type": "integer"}},
                "options": {"type": "object",
                            "properties": {"fine": {"type": "boolean", "default": False}}},
            },
            "required": ["place"],
        },
        "return": {"type": "object", "description": "What was measured"},
    },
}

CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather",
                 "arguments": {"place": "Zürich", "days": [1, 2], "ratio": 0.5, "fine": True}},
}


def chat(*messages, **more):
    context = {"messages": [{"role": role, "content": content} for role, content in messages],
               "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}
    context.update(more)
    return context


def tool_use(**more):
    context = chat(("system", "Be brief."), ("user", "Weather in Zürich?"), tools=[WEATHER],
                   **more)
    context["messages"] += [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "call00001",
         "content": "{\"temperature\": 7.5}"},
        {"role": "assistant", "content": "It is 7.5 °C."},
        {"role": "user", "content": "Thanks!"}]
    return context


CONVERSATIONS = {
    "user": chat(("user", "Hello!")),
    "system": chat(("system", "Be brief."), ("user", "  Hello!\n")),
    "turns": chat(("user", "One?"), ("assistant", " Two. "), ("user", "Three 日本語 🎉?")),
    "system_turns": chat(("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C"),
                         ("assistant", "D"), ("user", "E")),
    "no_prompt": chat(("user", "A"), ("assistant", "B"), add_generation_prompt=False),
    "wrong_order": chat(("user", "A"), ("user", "B")),
    "thinking": chat(("user", "A"), ("assistant", "<think>\nhm\n</think>\n\nB"), ("user", "C"),
                     enable_thinking=True),
    "no_thinking": chat(("system", "S /no_think"), ("user", "A"), enable_thinking=False,
                        reasoning_effort="low"),
    "reasoning": {**chat(("user", "A")), "messages": [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "B", "reasoning_content": "because"},
        {"role": "user", "content": "C"}]},
    "parts": {**chat(), "messages": [
        {"role": "system", "content": [{"type": "text", "text": "S"}]},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "image"},
                                     {"type": "text", "text": "B"}]}]},
    "tools": chat(("user", "Weather?"), tools=[WEATHER]),
    "tool_use": tool_use(),
    "tool_use_ended": tool_use(add_generation_prompt=False),
    "documents": chat(("user", "What?"), documents=[
        {"title": "T", "text": "Body", "doc_id": 1}]),
    "date": chat(("user", "When?"), date_string="26 Jul 2024", tools=None),
    "empty": chat(),
}
