"""File formats of questions about images: VQA v2, easy-VQA and NLVR.

Readers return questions in file order. Nothing is skipped silently: questions that are left out are counted
(`tasks.data.read.formats`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.data.read.answers import answer_type, normalized
from tasks.data.read.formats import check_fields, count, damaged, json_lines, parse_json, read_text
from tasks.data.read.splits import place
from tasks.data.records import Question

TYPES = ("yes/no", "number", "other")
NUMBERED = (int, str)


def read_vqa2(questions: Path, annotations: Path) -> list[Question]:
    """Read the challenge's JSON (VQA v1 and v2), plain or gzipped (detected from the content, whatever the file name).

    Questions without an annotation, and annotations without a question, are left out and counted.

    Args:
        questions: {"questions": [{"image_id", "question", "question_id"}, ...]}.
        annotations: {"annotations": [{"question_id", "answers": [{"answer"}, ...], "answer_type", ...}, ...]}.
    Raises:
        DataError: a file is missing, is not JSON, or does not have this format.
    """
    asked = _entries(questions, "questions", {"image_id": NUMBERED, "question": str, "question_id": NUMBERED})
    notes = _entries(annotations, "annotations", {"question_id": NUMBERED, "answers": list})
    by_id = {note["question_id"]: note for note in notes}
    found = []
    for entry in asked:
        if (note := by_id.pop(entry["question_id"], None)) is None:
            count("questions without an annotation left out")
            continue
        image, answers = str(entry["image_id"]), _answers(note, annotations)
        found.append(Question(entry["question_id"], image, entry["question"], *answers))
    count("annotations without a question left out", len(by_id))
    return found


def _answers(note: dict, path: Path) -> tuple[tuple[str, ...], str, str]:
    """The normalised answers of an annotation, the most frequent answer, and its type."""
    of = f"question {note['question_id']}: "
    given = tuple(normalized(check_fields(a, {"answer": str}, path, of)["answer"]) for a in note["answers"])
    chosen = note.get("multiple_choice_answer") or (Counter(given).most_common(1)[0][0] if given else "")
    check_fields({"multiple_choice_answer": chosen}, {"multiple_choice_answer": str}, path, of)
    most = normalized(chosen)
    kind = note.get("answer_type") or answer_type(most)
    if kind not in TYPES:
        raise damaged(path, f"{of}answer_type is {kind!r}", f"one of {', '.join(TYPES)}")
    return given, most, kind


def read_easy_vqa(path: Path, split: str) -> list[Question]:
    """Read easy-VQA: [[question, answer, image number], ...]; the image keys are "<split>/<number>"."""
    loaded = parse_json(read_text(path), path)
    kinds, expected = [str, str, int], "a list of [question, answer, image number]"
    if not isinstance(loaded, list) or not loaded:
        raise damaged(path, "it holds no such list", expected)
    for number, entry in enumerate(loaded):
        if not isinstance(entry, list) or [type(part) for part in entry] != kinds:
            raise damaged(path, f"entry {number:,} is {ascii(entry)[:40]}", expected)
    return [
        Question(i, f"{split}/{image}", text, (answer,), answer, answer_type(answer))
        for i, (text, answer, image) in enumerate(loaded)
    ]  # fmt: skip


def read_nlvr(path: Path, split: str) -> list[Question]:
    """Read NLVR (Suhr et al. 2017): one JSON object per line, with a sentence that is true or false for its image.

    The image is that of permutation 0, "<split>-<identifier>-0"; the answer is "true" or "false", of type yes/no.
    """
    found = []
    for number, entry in json_lines(path, {"identifier": str, "sentence": str, "label": str}):
        label = entry["label"]
        if label not in ("true", "false"):
            raise damaged(path, f"label is {label[:40]!r}", "true or false", line=number)
        image = f"{split}-{entry['identifier']}-0"
        found.append(Question(entry["identifier"], image, entry["sentence"], (label,), label, answer_type(label)))
    return found


def _entries(path: Path, key: str, fields: Mapping[str, Any]) -> list[dict]:
    loaded = parse_json(read_text(path), path)
    entries = loaded.get(key) if isinstance(loaded, dict) else None
    if not isinstance(entries, list):
        raise damaged(path, f"no list {key!r} at its top", f'{{"{key}": [..]}}')
    for number, entry in enumerate(entries):
        check_fields(entry, fields, path, f"{key}[{number}] ")
    return entries


def hold_out(questions: Sequence[Question], share: float) -> tuple[list[Question], list[Question]]:
    """Split questions by image into (the rest, held out), using the hash of the image key.

    About `share` of the images are held out, or at least one if there are several images.
    """
    parts: tuple[list[Question], list[Question]] = ([], [])
    places = sorted({place(q.image) for q in questions})
    limit = max(share, places[1]) if len(places) > 1 else share
    for q in questions:
        parts[place(q.image) < limit].append(q)
    return parts


def limited(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """At most `limit` questions, in the original order.

    Images are taken in the order of their hash, with all their questions; only the last image may be cut.
    """
    if limit is None or len(questions) <= limit:
        return list(questions)
    order = sorted(range(len(questions)), key=lambda i: (place(questions[i].image), i))
    return [questions[i] for i in sorted(order[:limit])]
