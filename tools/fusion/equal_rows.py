#!/usr/bin/env python3
"""At which ratio one method of fusion is as near to full prefill as another.

    SAMPLES=one.txt build/fusion_bench FILE ITEMS PASSAGES a3 cacheblend:ratio=0.1 ...
    tools/fusion/equal_rows.py one.txt [more.txt ...]

Mean KL of every method, and for every ratio of a3 the least ratio of cacheblend whose mean KL is
not larger, on straight lines between measured ratios, with a 95 % interval over items (bootstrap).
"""

import collections
import random
import sys

DRAWS = 2000


def ratio_of(method):
    return float(method.split("ratio=")[1]) if "ratio=" in method else 0.15


def mean(values, items):
    return sum(values[item] for item in items) / len(items)


def crossing(curve, wanted):
    """Of a falling curve [(ratio, KL)]; -inf or inf: beyond its ends."""
    before, least = None, float("inf")
    for ratio, value in curve:
        value = min(value, least)  # noise may have it rise
        if value <= wanted and before is None:
            return ratio if value == wanted else float("-inf")
        if value <= wanted:
            return before + (ratio - before) * (least - wanted) / (least - value)
        before, least = ratio, value
    return float("inf")


def text(ratio, curve):
    if ratio == float("-inf"):
        return f"< {100 * curve[0]:g}"
    return f"> {100 * curve[-1]:g}" if ratio == float("inf") else f"{100 * ratio:.0f}"


def main():
    samples = collections.defaultdict(dict)
    for path in sys.argv[1:]:
        for line in open(path):
            item, method, kl = line.split()[:3]
            samples[method][item] = float(kl)
    items = sorted(set.intersection(*(set(values) for values in samples.values())))
    samples.pop("none", None)  # full prefill
    methods = sorted(samples, key=lambda method: (method.split(":")[0], ratio_of(method)))
    others = [method for method in methods if method.startswith("cacheblend")]
    ratios = [ratio_of(method) for method in others]
    for method in methods:
        print(f"{method}: {mean(samples[method], items):.4f} over {len(items)} items")
    draw = random.Random(1)
    resampled = [draw.choices(items, k=len(items)) for _ in range(DRAWS)]
    for method in [method for method in methods if method.startswith("a3")]:

        def equal(drawn):
            curve = [(ratio_of(other), mean(samples[other], drawn)) for other in others]
            return crossing(curve, mean(samples[method], drawn))

        found = sorted(equal(drawn) for drawn in resampled)
        low, high = found[DRAWS // 40], found[DRAWS - 1 - DRAWS // 40]
        print(
            f"{method}: cacheblend at {text(equal(items), ratios)} % "
            f"[{text(low, ratios)}, {text(high, ratios)}]"
        )


if __name__ == "__main__":
    main()
