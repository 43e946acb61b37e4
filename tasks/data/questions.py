"""The formats that questions about images come in: VQA v2, easy-VQA, NLVR.

Readers return questions in the file's order and never skip silently: what is left out is counted in `Counts`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.data.answers import answer_type, normalized
from tasks.data.errors import DataError, DataUnavailable
from tasks.data.records import Question

Counts = Counter[str]  # what happened while reading, in words -> how often
TYPES = ("yes/no", "number", "other")


def read_vqa2(questions: Path, annotations: Path | None, counts: Counts) -> list[Question]:
    """The challenge's JSON (VQA v1 and v2), plain or gzipped (by content, whatever the name).

    Args:
        questions: {"questions": [{"image_id", "question", "question_id"}, ...]}.
        annotations: {"annotations": [{"question_id", "answers": [{"answer"}, ...], "answer_type", ...}, ...]}; None for a
            test set whose answers are hidden.
        counts: receives "questions without an annotation", "annotations without a question".
    Raises:
        DataError: a file is missing, no JSON, or not of this format.
    """
    asked = _entries(questions, "questions", ("image_id", "question", "question_id"))
    by_id: dict[Any, dict] = {}
    if annotations is not None:
        by_id = {a["question_id"]: a for a in _entries(annotations, "annotations", ("question_id", "answers"))}
    found = []
    for entry in asked:
        note = by_id.pop(entry["question_id"], None)
        if note is None and annotations is not None:
            counts["questions without an annotation"] += 1
            continue
        given = tuple(normalized(a["answer"]) for a in note["answers"]) if note else ()
        most = normalized(note.get("multiple_choice_answer") or _most_given(given)) if note else ""
        kind = (note or {}).get("answer_type") or answer_type(most)
        if kind not in TYPES:
            raise _wrong(
                annotations or questions,
                f"answer_type {kind!r} of question {entry['question_id']}; allowed: {', '.join(TYPES)}",
            )
        found.append(Question(entry["question_id"], str(entry["image_id"]), entry["question"], given, most, kind))
    counts["annotations without a question"] += len(by_id)
    return found


def read_easy_vqa(path: Path, split: str) -> list[Question]:
    """easy-VQA: [[question, answer, image number], ...]; images are keyed "<split>/<number>"."""
    loaded = read_json(path)
    if not isinstance(loaded, list) or not all(isinstance(e, list) and len(e) == 3 for e in loaded):
        raise _wrong(path, "not a list of [question, answer, image number]")
    return [
        Question(i, f"{split}/{image}", text, (answer,), answer, answer_type(answer))
        for i, (text, answer, image) in enumerate(loaded)
    ]  # fmt: skip


def read_nlvr(path: Path, split: str) -> list[Question]:
    """NLVR (Suhr et al. 2017): one JSON object a line, a sentence that is true or false of its image.

    The image is that of permutation 0, "<split>-<identifier>-0"; the answer is "true" or "false", of type yes/no.
    """
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            entry = json.loads(line)
            found.append(
                Question(
                    entry["identifier"], f"{split}-{entry['identifier']}-0", entry["sentence"], (entry["label"],), entry["label"],
                    answer_type(entry["label"]),
                )
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise _wrong(path, f"line {number}: {type(error).__name__}: {error}") from error
    return found


def read_text(path: Path) -> str:
    """A text file, gunzipped when it is gzipped. Raises DataUnavailable when it is missing, DataError when damaged."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise DataUnavailable(
            f"{path.name} is missing", str(path), "see the data set's page under data/manifests"
        ) from error
    try:
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        return raw.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise _wrong(path, f"{type(error).__name__}: {error}") from error


def read_json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise _wrong(path, f"no JSON: {error}") from error


def _entries(path: Path, key: str, fields: Sequence[str]) -> list[dict]:
    loaded = read_json(path)
    entries = loaded.get(key) if isinstance(loaded, dict) else None
    if not isinstance(entries, list):
        raise _wrong(path, f"no list {key!r} at its top")
    for number, entry in enumerate(entries):
        if missing := [f for f in fields if f not in entry]:
            raise _wrong(path, f"{key}[{number}] has no {', '.join(missing)}")
    return entries


def _most_given(answers: Sequence[str]) -> str:
    return Counter(answers).most_common(1)[0][0] if answers else ""


def _wrong(path: Path, what: str) -> DataError:
    return DataError(
        f"{path.name} is damaged or of another format", f"{path}: {what}", "fetch the file again, or correct data.name"
    )


def hold_out(questions: Sequence[Question], share: float) -> tuple[list[Question], list[Question]]:
    """Split by image, decided by the hash of its key: (the rest, about `share` of the images, but at least one of several)."""
    parts: tuple[list[Question], list[Question]] = ([], [])
    places = sorted({_place(q.image) for q in questions})
    limit = max(share, places[1]) if len(places) > 1 else share
    for q in questions:
        parts[_place(q.image) < limit].append(q)
    return parts


def limited(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """At most `limit` questions: whole images in the order of their hash, the last one cut; in the original order."""
    if limit is None or len(questions) <= limit:
        return list(questions)
    order = sorted(range(len(questions)), key=lambda i: (_place(questions[i].image), i))
    return [questions[i] for i in sorted(order[:limit])]


def _place(key: str) -> float:
    return int(hashlib.sha256(key.encode()).hexdigest()[:12], 16) / 16**12
