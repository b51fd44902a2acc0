"""Records what the reference packages make of predictions, for the metrics of src/eval/metrics.

Needs PyPI's rouge 1.0.1, rouge-score, fuzzywuzzy 0.18 (without python-Levenshtein) and rapidfuzz:
    python make_metric_goldens.py ../fixtures/eval/metrics.json
What has no package of its own is written here from LongBench's and RULER's definitions.
"""

import collections
import decimal
import json
import random
import re
import string
import sys
import warnings

warnings.filterwarnings("ignore", message="Using slow")
from fuzzywuzzy import fuzz  # noqa: E402
from rapidfuzz.distance import Indel  # noqa: E402
from rouge import Rouge  # noqa: E402
from rouge_score import rouge_scorer  # noqa: E402

assert fuzz.SequenceMatcher.__module__ == "difflib", "uninstall python-Levenshtein"
RANDOM = random.Random(20)

WORDS = ("the a an of in river bridge was built by engineers who came from Norway in 1921 and its "
         "cost rose to 4,500 crowns; council's report (second edition) names Ås, Žilina, NAÏVE "
         "thé x-ray co-op state-of-the-art don't The A An it is not known").split()
TEXTS = [
    "", " ", ".", "...", "The", "a an the", "The Eiffel Tower", "eiffel tower.", "an apple a day",
    "A\u00a0no-break\u3000space", "the\u2019s quote", "a\u2014b the\u2014end",
    "\u00c9COLE the \u00e9cole",
    "thea the_a the1 the-a", "unanswerable", "yes", "Yes.", "No", "1,234", "1234", "$18.00!",
    "line one\nline two", "  padded \t answer\r\n", "\x1cseparated\x1dwords\x85here",
    "\u0661\u0662 digits", "e\u0301clair the e\u0301", "U.S. Army. It left. ", "x. . y", "x.y.z",
]


def sentence(words):
    return " ".join(RANDOM.choice(WORDS) for _ in range(words))


def text(sentences, words):
    return ". ".join(sentence(RANDOM.randint(1, words)) for _ in range(sentences)) + "."


def edited(original, rate):
    """The text with some words dropped, replaced, doubled or moved."""
    words = original.split(" ")
    for _ in range(max(1, int(rate * len(words)))):
        at = RANDOM.randrange(len(words))
        old, new = words[at], RANDOM.choice(WORDS)
        words[at:at + 1] = RANDOM.choice([[], [new], [old, old], [old, new]])
        if not words:
            return ""
    if RANDOM.random() < 0.3:
        cut = RANDOM.randrange(len(words))
        words = words[cut:] + words[:cut]
    return " ".join(words)


def short_pairs():
    pairs = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1])) + [(item, item) for item in TEXTS[::3]]
    for _ in range(25):
        original = sentence(RANDOM.randint(1, 9))
        pairs.append((edited(original, 0.4), original))
    return pairs


def long_pairs():
    pairs = []
    for _ in range(30):
        original = text(RANDOM.randint(1, 4), 14)
        pairs.append((edited(original, RANDOM.choice([0.1, 0.5, 0.9])), original))
    return pairs


# LongBench's token F1.
def normalize_answer(answer):
    answer = "".join(c for c in answer.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", answer).split()


def qa_f1(prediction, reference):
    predicted, expected = normalize_answer(prediction), normalize_answer(reference)
    same = sum((collections.Counter(predicted) & collections.Counter(expected)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(expected)
    return 2 * precision * recall / (precision + recall)


# The depth of the call stack is that of LongBench's eval.py: main, scorer, metric.
def scorer(pairs):
    def metric(prediction, reference):
        try:
            return Rouge().get_scores([prediction], [reference], avg=True)["rouge-l"]["f"]
        except Exception:
            return None

    return [metric(*pair) for pair in pairs]


def rouge_goldens(pairs):
    sys.setrecursionlimit(1000)
    limited = scorer(pairs)
    sys.setrecursionlimit(100000)
    free = scorer(pairs)
    sys.setrecursionlimit(1000)
    return [[full or 0.0, published is None and full is not None]
            for published, full in zip(limited, free)]


def deep_pairs():
    """Words that differ, so that the way back takes one step for each of both sides' words."""
    def pair(steps):
        ours = " ".join(["a"] + ["b"] * (steps // 2))
        theirs = " ".join(["a"] + ["c"] * (steps - steps // 2))
        return ours, theirs
    return [pair(steps) for steps in (400, 960, 1020)] + [(" ".join(["w"] * 1030),) * 2]


# LongBench's classification; the quirk is to drop from the list that is being walked.
def classification(prediction, reference, classes, quirk):
    found = [name for name in classes if name in prediction]
    for name in found if quirk else list(found):
        if name in reference and name != reference:
            found.remove(name)
    return 1.0 / len(found) if reference in found else 0.0


def classification_cases():
    sets = [
        ["Entity", "Entity name", "Other entity name", "entity name", "name"],
        ["Food", "Dates", "Other number", "Order, rank", "Number of something", "number"],
        ["a", "ab", "abc", "abcd", "b"],
        ["Definition", "Description of a person", "Description", "Description of something",
         "person"],
    ]
    cases = [["", "Food", sets[1]], ["Food", "Food", []], ["food", "Food", sets[1]]]
    for _ in range(40):
        classes = RANDOM.choice(sets)
        named = RANDOM.sample(classes, RANDOM.randint(1, 3))
        cases.append(["It is " + " or ".join(named) + ".", RANDOM.choice(classes), classes])
    return [[*case, classification(*case, False), classification(*case, True)] for case in cases]


# LongBench's count and retrieval.
def count_score(prediction, reference):
    numbers = re.findall(r"\d+", prediction)
    return sum(number == reference for number in numbers) / len(numbers) if numbers else 0.0


def number_texts():
    texts = ["", "none", "12", "12.", "There are 12 paragraphs, 12 of them unique", "1 2 3 12",
             "012", "12a3", "\u0661\u0662", "Paragraph 12", "paragraph 3 or 12", "x12y12"]
    for _ in range(30):
        texts.append(", ".join(RANDOM.choice(["12", "7", "30", "some", "Paragraph 12", "1 2"])
                               for _ in range(RANDOM.randint(1, 5))))
    return texts


def noisy(line, edits, letters):
    """The line with runs of up to two characters replaced by others."""
    characters = list(line)
    for _ in range(edits):
        at = RANDOM.randrange(len(characters) + 1)
        new = RANDOM.choices(letters, k=RANDOM.randint(0, 2))
        characters[at:at + RANDOM.randint(0, 2)] = new
    return "".join(characters)


def edit_pairs():
    lines = [
        "    return self._cache.get(key, default)", "for (int i = 0; i < n; ++i) {",
        "private static final Logger LOG = LoggerFactory.getLogger(Main.class);",
        "        x = [row[0] for row in rows if row]", "\tstd::vector<int> values(n, 0);",
        "print('na\u00efve \u2713 \U0001f600')", "}", " ", "self.assertEqual(a, b)",
        "self.assertEquals(b, a)", "public void onCreate(Bundle savedInstanceState) {",
    ]
    pairs = [("", ""), ("", "x"), ("x", ""), ("abc", "abc"), ("abcd", "bcde"), ("qabxcd", "abycdf")]
    pairs += [(a, RANDOM.choice(lines)) for a in lines]
    for _ in range(30):
        line = RANDOM.choice(lines)
        pairs.append((noisy(line, RANDOM.randint(1, 12), "abcet ()=_;"), line))
    for size in (198, 199, 200, 201, 230, 300, 310, 420):  # popular characters matter from 200 on
        original = "".join(RANDOM.choices("etaoin srhldcu_().=", k=size))
        pairs.append((noisy(original, size // 5, "etaoinXYZ ("), original))
    rare = "".join(map(chr, range(0x4e00, 0x4e00 + 120)))
    pairs += [(rare + "ab" * 50, "ab" * 50 + rare),
              (rare[:60] + "ab" * 90, rare[30:90] + "ab" * 90),
              ("ab" * 120, "ba" * 120), ("x" + "ab" * 99, "ab" * 100)]
    return pairs


def indel_ratio(prediction, reference):
    """What fuzzywuzzy's ratio / 100 becomes with python-Levenshtein."""
    if not prediction or not reference:
        return float(prediction == reference)
    return int(round(100 * Indel.normalized_similarity(prediction, reference))) / 100


def code_line(prediction):
    for line in prediction.lstrip("\n").split("\n"):
        if not any(mark in line for mark in ("`", "#", "//")):
            return line
    return ""


def code_predictions():
    pieces = ["", "x = 1", "# note", "// note", "```python", "  y()", "a / b", "z  # why", "\r"]
    return ["", "\n\n", "\n\nx", "x\n", "# a\n\nx"] + [
        "\n".join(RANDOM.choices(pieces, k=RANDOM.randint(1, 4))) for _ in range(30)]


# RULER's string matching behind its post-processing.
def ruler_cleaned(prediction):
    return re.sub(r"[\x00-\x1f]", "\n", prediction.strip()).strip()


def ruler_cases():
    names = ["8231749", "VAB QCD", "apple", "Zoë", "two\nlines", "New  York", "É", "12"]
    cases = [["", ["x"]], ["x", [""]], [" \x00 apple \x1f", ["apple"]],
             ["two\tlines", ["two\nlines"]]]
    for _ in range(32):
        references = RANDOM.sample(names, RANDOM.randint(1, 4))
        said = [RANDOM.choice([str.upper, str.lower, str])(name)
                for name in RANDOM.sample(names, 3)]
        start, separator = RANDOM.choice(["", " \n", "\x07"]), RANDOM.choice([", ", "\x01", "\t"])
        cases.append([start + separator.join(said), references])
    out = []
    for prediction, references in cases:
        lower = ruler_cleaned(prediction).lower()
        hits = [1.0 if reference.lower() in lower else 0.0 for reference in references]
        out.append([prediction, references, sum(hits) / len(hits), max(hits)])
    return out


# Numbers of worked answers: the definition in gsm8k_metrics.h as a regular expression.
NUMBER = (r"(?P<sign>(?<![A-Za-z0-9)$])\$?[-\u2212]\$?)?(?:(?<![^ \t\n$+(-])(?P<point>\.\d+)|"
          r"(?P<whole>\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?P<decimals>\.\d+)?)")


def exact(match):
    value = decimal.Decimal((match["point"] or match["whole"].replace(",", "") +
                             (match["decimals"] or "")))
    value = -value if match["sign"] and value else value
    return format(value.normalize(), "f") if value else "0"


def gsm8k_cases():
    answers = [
        "", "no number", "The answer is 18.", "The answer is 18", "The answer is $18.00.",
        "The answer is 1,234.", "The answer is $1,234,567.890 in all.", "The answer is -5.",
        "The answer is $-5.", "The answer is -$5.", "The answer is \u22125.", "20-5 = 15", "20-5",
        "(3)-2", "10 - 4", "x = -4", "The answer is 72.50.", "The answer is 0.", "-0", "-0.0",
        "007",
        "1,23", "1,2345", "12,345,67", "1234,567", "1.2.3", "3.", "3.14", ".5", "about .50", "No.5",
        "#### 42", "so 6 * 7 = 42\n#### 42", "The answer is 42. She has 3 dogs.",
        "The answer is not 7. The answer is 8.", "The answer is clear. The answer is: **9**",
        "The answer is about 12.", "the answer is 6", "The answer is 5%.", "The answer is\n16",
        "It costs 5 dollars/2 people", "The answer is 100,000,000.", "The answer is 1e3",
    ]
    cases = []
    for answer in answers:
        strict = re.search(r"The answer is[^A-Za-z0-9]*?" + NUMBER, answer)
        found = list(re.finditer(NUMBER, answer))
        cases.append([answer, exact(strict) if strict else "", exact(found[-1]) if found else ""])
    return cases


def main():
    english = rouge_scorer.RougeScorer(["rougeL"])
    pairs = short_pairs() + long_pairs() + deep_pairs()
    numbers = number_texts()
    goldens = {
        "texts": [[*pair, qa_f1(*pair), *summary,
                   english.score(pair[1], pair[0])["rougeL"].fmeasure]
                  for pair, summary in zip(pairs, rouge_goldens(pairs))],
        "classification": classification_cases(),
        "count": [[item, "12", count_score(item, "12")] for item in numbers],
        "retrieval": [[item, "Paragraph 12", count_score(item, "12")] for item in numbers],
        "edit_similarity": [[*pair, fuzz.ratio(*pair) / 100, indel_ratio(*pair)]
                            for pair in edit_pairs()],
        "code_line": [[item, code_line(item)] for item in code_predictions()],
        "ruler": ruler_cases(),
        "gsm8k": gsm8k_cases(),
    }
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        lines = []
        for name, cases in goldens.items():
            body = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
            lines.append(f"{json.dumps(name)}: [\n{body}\n]")
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


main()
