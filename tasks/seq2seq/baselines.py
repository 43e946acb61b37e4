"""Trivial baselines to compare scores with: a constant output, the start of the source, the nearest neighbour."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.data.files import remembered
from tasks.seq2seq.encode import Encoded, Split
from tasks.seq2seq.metrics import references, score
from tasks.seq2seq.tokenize import join_subwords, output_text, reference_text

RECIPE = 3
# training pairs searched, spread evenly over a larger set; searching millions takes minutes and gigabytes
NEIGHBOURS = 200_000
BLOCK = 64  # test sentences per comparison


def baselines(encoding: Encoded, test: Encoded, scores: Sequence[str], name: str = "test") -> dict[str, dict[str, Any]]:
    """For each baseline system, a mapping from `<name>/<metric>` to its value, and a description of the system.

    The systems are evaluated like a model's outputs, and their scores are cached next to the test set.

    constant: the training target most similar to the dev targets. lead: the first source words, as many as the training
    targets have on average. neighbour: the target of the training pair with the most similar source. If there are no
    training pairs (only a finished model), the first two are built from the test set itself, which flatters them, and
    there is no neighbour.
    """
    cache = test.folder.parent / f"{test.folder.name}.baselines.json"
    key = json.dumps([RECIPE, list(scores), encoding.sha256, test.sha256])
    values = remembered(cache, key, lambda: _compute(encoding, test, scores))
    return {system: {f"{name}/{k}": v for k, v in row.items()} for system, row in values.items()}


def _compute(encoding: Encoded, test: Encoded, scores: Sequence[str]) -> dict[str, dict[str, Any]]:
    part, language = test.splits["test"], test.languages["target"]
    train = encoding.splits.get("train", part)
    dev = encoding.splits.get("dev", train)

    def text(split: Split, i: int, source: str = "") -> str:
        return output_text(split.target_tokens[i], test.options, language, source=source, digits=test.digits)

    candidates, wanted = ([text(part, i) for i in _spread(len(part), n)] for part, n in ((train, 1000), (dev, 400)))
    constant = most_central(candidates, wanted, language)
    words = max(1, round(float(np.mean([len(text(train, i).split()) for i in _spread(len(train), 5000)]))))
    lead = [reference_text(" ".join(p.source.split()[:words]), test.options, digits=test.digits) for p in part.pairs]
    outputs: dict[str, tuple[list[str], dict[str, Any]]] = {"constant": ([constant] * len(part), {"text": constant})}
    outputs["lead"] = (lead, {"words": words})
    if train is not part:
        searched = _spread(len(train), NEIGHBOURS)
        subword, every = test.options.subword, ((train, searched), (part, range(len(part))))
        sources = [[join_subwords(split.source_tokens[i], subword) for i in rows] for split, rows in every]
        nearest, similarity = nearest_neighbours(*sources)
        copied = [text(train, searched[i], pair.source) for i, pair in zip(nearest, part.pairs)]
        outputs["nearest neighbour"] = (copied, {"similarity": round(float(similarity.mean()), 4)})
    how = references(test), test.options, language
    return {system: score(scores, said, *how)[0] | extra for system, (said, extra) in outputs.items()}


def nearest_neighbours(
    texts: Sequence[Sequence[str]], queries: Sequence[Sequence[str]]
) -> tuple[np.ndarray, np.ndarray]:
    """For each query, the index of the most similar text (the first one if tied) and the similarity.

    Similarity is the cosine of scikit-learn's tf-idf: word counts times log((1 + n) / (1 + df)) + 1, where n is the
    number of texts and df the number of texts that contain the word.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    tfidf = TfidfVectorizer(analyzer=list)
    known = tfidf.fit_transform(texts).T.tocsr()
    asked = tfidf.transform(queries)
    best, similarity = np.zeros(len(queries), dtype=np.int64), np.zeros(len(queries))
    for start in range(0, len(queries), BLOCK):
        cosines = (asked[start : start + BLOCK] @ known).toarray()  # [BLOCK, texts]
        best[start : start + BLOCK], similarity[start : start + BLOCK] = cosines.argmax(1), cosines.max(1)
    return best, similarity


def most_central(candidates: Sequence[str], dev: Sequence[str], language: str | None = None) -> str:
    """The candidate with the largest mean ROUGE-1 F1 against the texts of `dev`; the first one if tied."""
    from sklearn.feature_extraction.text import CountVectorizer

    from tasks.seq2seq.rouge import rouge_tokenizer

    words = CountVectorizer(analyzer=rouge_tokenizer([dev], language)[0].tokenize, dtype=np.int16)
    counts = words.fit_transform([*candidates, *dev, "a"]).toarray()[:-1]  # "a": a vocabulary may not be empty
    own, wanted = counts[: len(candidates)], counts[len(candidates) :]
    means, lengths = np.full(len(own), -1.0), wanted.sum(1)
    for i, row in enumerate(own):
        if (on := row.nonzero()[0]).size:
            means[i] = (2 * np.minimum(row[on], wanted[:, on]).sum(1) / (row.sum() + lengths)).mean()
    return candidates[int(means.argmax())]


def _spread(size: int, count: int) -> list[int]:
    """At most `count` indices spread evenly over range(size)."""
    return np.unique(np.linspace(0, size - 1, min(size, count)).astype(int)).tolist() if size else []
