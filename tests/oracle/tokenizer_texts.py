"""Texts that tokenizers are trained and compared on."""

TRAINING = """
It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of
foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of
Light, it was the season of Darkness, it was the spring of hope, it was the winter of despair.
We hold these truths to be self-evident, that all men are created equal, that they are endowed with
certain unalienable Rights, that among these are Life, Liberty and the pursuit of Happiness.
Im Anfang war das Wort, und das Wort war bei Gott. Ärger über Öl und große Straßen, fünf Würfel.
En un lugar de la Mancha, de cuyo nombre no quiero acordarme, no ha mucho tiempo
que vivía un hidalgo.
Быть или не быть, вот в чём вопрос. Все счастливые семьи похожи друг на друга.
床前明月光,疑是地上霜。举头望明月,低头思故乡。 我想在2024年工作。
def main(args):\n    for i in range(10):\n        print(i, "value", args[i])\n    return 0
for (int i = 0; i < 100; ++i) { total += values[i] * 3.14159; }  // the sum of 1234567 values
""".strip().split("\n")

TEXTS = [
    "",
    " ",
    "  ",
    "     ",
    "\n",
    "\n\n \n",
    "\t\t x",
    "Hello world",
    " Hello  world ",
    "Hello, y'all! I'M sure they'll say it's 3 o'clock; WE'VE 12345 of 1,234,567.89",
    "it was the best of times, it was the age of wisdom\n"
    "    and   the worst\t of them \n\n\n end  ",
    "Größe über Straßen: Ärger, fünf Würfel",
    "Cu\u031b\u0309a Vie\u0323\u0302t / Cửa Việt / e\u0301\u0327 \u00c5 \u212b \u1e9b\u0323",
    "Быть или не быть, вот в чём вопрос! 100%",
    "床前明月光,疑是地上霜。 我想在apple工作1314151天～",
    "ひらがな カタカナ 한국어 텍스트 \u1112\u1161\u11ab",
    "مرحبا بالعالم ١٢٣ שלום",
    "កាន់តែពិសេសអាចខលចេញ हिन्दी ४५६",
    "🚀 (normal) 😶\u200d🌫️ 👩\u200d👩\u200d👧 ✅ 🦙🦙 🇩🇪",
    "def main(args):\n    for i in range(10):\n\t\tprint(i, \"x\")\r\n"
    "    return {'a': [1, 22, 333, 4444]}",
    "x = (a+b)*c[0] != d->e && !f || g<<3; // $100 ~ `back` ^ | \\ @ #tag",
    "\u0000 \u0001\u0002 \u001c \u007f \u0085 \u00a0 \u180e \u200b \u2028 \u3000 \ufeff \ufffd",
    "½ ² ³ ¹ Ⅷ ① ﬁ ﬀ Ａｂｃ ſ İ I",
    "▁under▁score ▁▁ \u2581",
    "Ġ Ċ ĉ Ā",
    "<|im_start|>user\nHi<|im_end|>\n<s> </s> <unk> <|begin_of_text|>",
    "<0x41><0x0A>",
    "a<tool_call> b </tool_call>c  <mask>  d word-sep wordsep SEP <pad>e",
    "1 12 123 1234 12345 123456 1234567",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "------======= ''''''```````\"\"\"\"......!!!!!!??????",
    "https://example.org/a/b?c=d&e=f%20g#h user.name+tag@example.com",
]
