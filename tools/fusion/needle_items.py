#!/usr/bin/env python3
"""Writes questions over passages for fusion_bench: every passage of essay text hides one number.

    tools/fusion/needle_items.py PaulGrahamEssays.json nounlist.txt ITEMS PASSAGES > needles.jsonl

RULER's needles with many keys (niah_multikey), one needle a passage, so that each stands in a chunk
of its own. A question asks for one of them.
"""

import json
import random
import sys

WORDS = 90  # of a passage, beside its needle


def main():
    essays, nouns, items, count = sys.argv[1:]
    words = json.load(open(essays))["text"].split()
    keys = open(nouns).read().split()
    draw = random.Random(7)
    for _ in range(int(items)):
        passages, numbers = [], {}
        for key in draw.sample(keys, int(count)):
            numbers[key] = str(draw.randrange(1000000, 10000000))
            begin, at = draw.randrange(len(words) - WORDS), draw.randrange(WORDS)
            text = words[begin : begin + WORDS]
            needle = f"One of the special magic numbers for {key} is: {numbers[key]}."
            passages.append(" ".join(text[:at] + [needle] + text[at:]))
        asked = draw.choice(list(numbers))
        print(json.dumps({
            "question": f"What is the special magic number for {asked} mentioned in the passages?",
            "answers": [numbers[asked]],
            "ctxs": [{"title": "", "text": passage} for passage in passages],
        }))


main()
