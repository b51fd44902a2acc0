"""Scores of LongBench and GSM8K as their evaluation code defines them, independent of Reprise's.

Needs PyPI's rouge 1.0.1 and fuzzywuzzy 0.18 (without python-Levenshtein). LongBench: eval.py and
metrics.py of THUDM/LongBench; GSM8K: the filters of lm-evaluation-harness's gsm8k_cot.
"""

import collections
import json
import pathlib
import re
import string

from fuzzywuzzy import fuzz
from rouge import Rouge

FEW_SHOT = ("trec", "triviaqa", "samsum")


def normalize_answer(answer):
    answer = "".join(c for c in answer.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", answer).split()


def qa_f1(prediction, reference, _classes=None):
    predicted, expected = normalize_answer(prediction), normalize_answer(reference)
    same = sum((collections.Counter(predicted) & collections.Counter(expected)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(expected)
    return 2 * precision * recall / (precision + recall)


def rouge_l(prediction, reference, _classes=None):
    try:
        return Rouge().get_scores([prediction], [reference], avg=True)["rouge-l"]["f"]
    except Exception:
        return 0.0


def classification(prediction, reference, classes):
    found = [name for name in classes if name in prediction]
    for name in found:  # as published: drops from the list that is being walked
        if name in reference and name != reference:
            found.remove(name)
    return 1.0 / len(found) if reference in found else 0.0


def share_of_numbers(prediction, wanted):
    numbers = re.findall(r"\d+", prediction)
    return sum(number == wanted for number in numbers) / len(numbers) if numbers else 0.0


def count(prediction, reference, _classes=None):
    return share_of_numbers(prediction, str(reference))


def retrieval(prediction, reference, _classes=None):
    return share_of_numbers(prediction, re.findall(r"Paragraph (\d+)", reference)[0])


def code_similarity(prediction, reference, _classes=None):
    lines = prediction.lstrip("\n").split("\n")
    first = next((s for s in lines if "`" not in s and "#" not in s and "//" not in s), "")
    return fuzz.ratio(first, reference) / 100


LONGBENCH = {
    "narrativeqa": qa_f1, "qasper": qa_f1, "multifieldqa_en": qa_f1, "hotpotqa": qa_f1,
    "2wikimqa": qa_f1, "musique": qa_f1, "triviaqa": qa_f1, "gov_report": rouge_l,
    "qmsum": rouge_l, "multi_news": rouge_l, "samsum": rouge_l, "trec": classification,
    "passage_count": count, "passage_retrieval_en": retrieval, "lcc": code_similarity,
    "repobench-p": code_similarity,
}


def longbench(subtask, prediction, references, data):
    if subtask in FEW_SHOT:
        prediction = prediction.lstrip("\n").split("\n")[0]
    classes = None
    if subtask == "trec":
        with open(pathlib.Path(data) / "longbench" / "trec.jsonl", encoding="utf-8") as records:
            classes = json.loads(records.readline())["all_classes"]
    return max(LONGBENCH[subtask](prediction, answer, classes) for answer in references)


def bare(number):
    return re.sub(r"\.$", "", re.sub(r",|\$", "", number))


def gsm8k(prediction, gold):
    """Whether the number behind "The answer is" is the gold answer's (strict match)."""
    found = re.findall(r"The answer is (\-?[0-9\.\,]+).", prediction + " ")
    return float(bool(found) and bare(found[0]) == bare(gold.split("####")[-1].strip()))
