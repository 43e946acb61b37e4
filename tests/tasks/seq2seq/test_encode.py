"""Encoding: against counting by hand, other tokenisers and subword tools; folders under damage and many writers."""

import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import ConfigError
from repro.options import read
from tasks.data import DataError, NullProgress, pieces
from tasks.data.symbols import FIRST, SPECIAL, UNK
from tasks.seq2seq import encode as module
from tasks.seq2seq.metrics import ceiling
from tasks.seq2seq.options import TOKENIZERS, Encode
from tasks.seq2seq.tokenize import (
    BYTE,
    join_subwords,
    output_text,
    reference_text,
    restore_digits,
    tokenizer,
)
from tasks.seq2seq.vocabulary import BYTES

TEXT = [
    ("Le chat (noir) n'aime pas l'eau, dit-il.", "The (black) cat doesn't like water, he says."),
    ("Il a payé 1 234,50 € en mai 2017 !", "He paid €1,234.50 in May 2017!"),
    ("« Bonjour », a-t-elle dit ; puis rien.", '"Hello", she said; then nothing.'),
    ("Le chat boit de l'eau.", "The cat drinks water."),
    ("Le chien boit aussi.", "The dog drinks, too."),
] * 8
DEV = [("Le zèbre boit.", "The zebra drinks.")]


def options(**given) -> Encode:
    return read(Encode, given, "encode")


def encode(data, root, progress=None, **given):
    return module.encode(data, options(**given), root, progress or NullProgress())


def encode_test(data, encoding, root):
    return module.encode_test(data, encoding, root, NullProgress())


@pytest.fixture
def little(dataset):
    return dataset(TEXT, DEV, DEV)


def test_ids_and_vocabulary_against_counting_by_hand(little, tmp_path):
    got = encode(little, tmp_path, min_count=9, vocab_size=7)
    vocabularies = got.source_vocab, got.target_vocab
    for side, vocab, text in zip(("source", "target"), vocabularies, zip(*TEXT), strict=True):
        counts = Counter(token for line in text for token in line.split())
        expected = [token for token, count in counts.most_common() if count >= 9][:7]
        assert sorted(vocab) == sorted(expected)
        assert [counts[token] for token in vocab] == sorted((counts[t] for t in expected), reverse=True)
        rows = getattr(got.splits["train"], side)
        assert rows.flat.dtype == np.int32 and len(rows) == len(text)
        symbols = [*SPECIAL, *vocab]
        for row, line in zip(rows, text):
            assert [symbols[i] for i in row] == [t if t in vocab else "<unk>" for t in line.split()]
    dev = got.splits["dev"]
    assert dev.source_tokens[0] == ["Le", "zèbre", "boit."] and dev.source[0][1] == UNK
    assert dev.pairs[0].references == ("The zebra drinks.", "another reference")
    assert got.report["unknown"]["dev.source"] == pytest.approx(float(np.mean(dev.source[0] == UNK)))
    assert got.report["pairs"] == {"train": 40, "dev": 1} and set(got.splits) == {"train", "dev"}
    assert got.sizes == (FIRST + len(got.source_vocab), FIRST + len(got.target_vocab))


def test_special_symbols_of_a_text_are_unknown_and_an_empty_source_has_something_to_attend_to(dataset, tmp_path):
    got = encode(dataset([("<unk> a </s> <pad>", "b <s>")] * 3, [("", "x")], []), tmp_path)
    assert got.source_vocab == ["a"] and got.splits["train"].source[0].tolist() == [UNK, FIRST, UNK, UNK]
    assert got.splits["train"].source_tokens[0] == ["<unk>", "a", "</s>", "<pad>"]
    for part in (got.splits["dev"], encode_test(dataset(test=[("", "y")]), got.folder, tmp_path).splits["test"]):
        assert part.source[0].tolist() == [UNK] and part.source_tokens[0] == ["<unk>"] and part.pairs[0].source == ""


@pytest.mark.parametrize("subword", ["none", "bpe", "sentencepiece"])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("name", ["none", "moses", "moses_lower"])
def test_decoding_undoes_encoding(little, tmp_path, name, joint, subword):
    size = None if subword == "none" else 120
    got = encode(little, tmp_path, tokenizer=name, subword=subword, joint=joint, vocab_size=size)
    assert (got.source_vocab == got.target_vocab) == joint
    split = got.splits["train"]
    for i, (_, target) in enumerate(TEXT[:5]):
        row = split.target[i]
        tokens = [got.target_vocab[k - FIRST] for k in row]
        assert UNK not in row and tokens == split.target_tokens[i]
        want = target.lower() if name == "moses_lower" else target
        text = output_text(tokens, got.options, "en")
        if '"' in want and name != "none":  # Moses has no direction for a plain quote at the start of a sentence
            text, want = text.replace(" ", ""), want.replace(" ", "")
        assert text == want


SCRIPTS = """今天天气很好，我们去公园玩吧。; می‌خواهم گربه‌ها را ببینم.; हिन्दी में लिखा हुआ है।; Об'єднання м'яких і п'яти.; Il caffe\u0300 di http://a.b/c?x=1, #tag &amp; <b>!;
ภาษาไทยง่ายมาก; İstanbul'daki "ev" güzel.; कहाँ? 'यहाँ' 50 %; 👍 <0xE4> @-@ (c)"""


@pytest.mark.parametrize("joint", [False, True])
def test_raw_text_comes_back_whatever_it_is_even_with_new_characters(dataset, tmp_path, joint):
    """Byte fallback: the test set has characters and words that no training text has."""
    train = [(text, text) for text in SCRIPTS.split(";")[:4]] * 3
    test = [("", " ".join(text.split())) for text in SCRIPTS.split(";")]
    trained = encode(dataset(train), tmp_path, tokenizer="raw", subword="sentencepiece", joint=joint)
    got = encode_test(dataset(test=test, references=()), trained.folder, tmp_path)
    symbols = [*SPECIAL, *got.target_vocab]
    texts = [output_text([symbols[i] for i in row], got.options) for row in got.splits["test"].target]
    assert texts == [text for _, text in test] and ceiling(got, ["bleu", "chrf"]).startswith("Ceiling")
    assert len(set(got.target_vocab)) == len(got.target_vocab) and sum(map(bool, map(BYTE.fullmatch, symbols))) == 256


@pytest.mark.parametrize("tokenizer, subword", [("raw", "sentencepiece"), ("moses", "none")])
def test_texts_too_short_for_a_score_are_no_loss_unless_they_change(dataset, tmp_path, tokenizer, subword):
    joined = "می‌بیند گربه‌ها را در خانه"
    trained = encode(dataset([("a", "b c"), ("a", joined)] * 3), tmp_path, tokenizer=tokenizer, subword=subword)

    def told(texts, scores):
        test = dataset(test=[("a", text) for text in texts], references=())
        return ceiling(encode_test(test, trained.folder, tmp_path), scores)

    short, scores = ["b c"] * 9 + ["c"], "bleu 0.0, chrf 100.0, rouge1_f 100.0, rouge2_f 90.0"
    said = told(short, ["bleu", "chrf", "rouge_f1"])
    assert said.startswith(f"Ceiling (the references, encoded and decoded): {scores}")
    assert "(bleu, rouge2_f: texts" in said and told(short, ["multi_bleu", "attention"]) == ""
    assert told([*short[:9], "#c"], ["bleu", "chrf"]).startswith("WARNING") == (tokenizer == "moses")
    if tokenizer == "moses":
        step = r"one is .می .* encode.tokenizer=raw encode.subword="
        warning = rf"WARNING: .* score only bleu \d\d?\.\d, chrf \d\d\d?\.\d; {step}"
        assert re.search(warning, told([joined], ["bleu", "chrf", "attention"]))


def test_the_units_of_raw_text_fit_its_characters(monkeypatch):
    def fitted(characters, times, size=None):
        return pieces.fitted(["".join(map(chr, range(0x4E00, 0x4E00 + characters))) * times], size, BYTES)

    assert fitted(100, 1) == (2000, 0.9995) and fitted(100, 20_000) == (4000, 0.9995)
    size, coverage = fitted(3000, 2)
    assert size == 3 + 256 + 2999 * 4 // 3 + 1 and coverage == 0.9995
    assert fitted(1000, 2, 1580) == (1580, pytest.approx(0.99)) and fitted(1000, 2, 1566) == (1566, 0.98)
    said = r"(?s)encode\.vocab_size=1565 is too small.*980 characters.*set encode\.vocab_size=1566"
    with pytest.raises(DataError, match=said) as error:
        fitted(1000, 2, 1565)
    assert "encode.vocab_size" in str(error.value)
    monkeypatch.setattr(pieces, "PER_PIECE", 1)
    assert fitted(100, 400) == (32_000, 0.9995)


def test_bpe_is_what_the_subword_nmt_command_gives_and_dictionaries_are_fairseqs(little, tmp_path):
    got = encode(little, tmp_path, subword="bpe", vocab_size=150)
    command = [sys.executable, "-m", "subword_nmt.apply_bpe", "-c", str(got.folder / "subwords.source.bpe")]
    text = "".join(s + "\n" for s, _ in TEXT).encode()
    done = subprocess.run(command, input=text, capture_output=True, check=True, env=os.environ | {"PYTHONUTF8": "1"})
    expected = [line.split() for line in done.stdout.decode().splitlines()]
    assert [got.splits["train"].source_tokens[i] for i in range(len(TEXT))] == expected
    assert len(got.source_vocab) <= 150 and not (got.folder / "dict.txt").exists()
    joint = encode(little, tmp_path, subword="bpe", vocab_size=120, joint=True)
    one, *others = ((joint.folder / f"dict{side}.txt").read_text() for side in ("", ".source", ".target"))
    words, counts = zip(*(line.rsplit(" ", 1) for line in one.splitlines()))
    train = joint.splits["train"]
    both = np.bincount(np.concatenate([train.source.flat, train.target.flat]), minlength=joint.sizes[0])
    assert others == [one, one] and [*words] == joint.source_vocab and [*map(int, counts)] == both[FIRST:].tolist()


def test_tokenisers_cut_and_outputs_are_joined_as_published():
    # examples of the Moses documentation of -a and -no-escape
    words = tokenizer("moses", "en")('a well-known "fact" & more\'s')
    assert words == ["a", "well", "@-@", "known", '"', "fact", '"', "&", "more", "'s"]
    assert tokenizer("moses", "fr")("l'eau d'Évian") == ["l'", "eau", "d'", "Évian"]
    got = tokenizer("ptb_gigaword")("Sri Lanka on Wednesday (March 15) said it couldn't pay $1,250.5.")
    assert " ".join(got) == "sri lanka on wednesday -lrb- march ## -rrb- said it could n't pay $ #,###.# ."
    assert reference_text("It's (a) cat", options(tokenizer="ptb_lower")) == "it 's -lrb- a -rrb- cat"
    assert reference_text("It's (a) cat", options(tokenizer="moses")) == "It's (a) cat"
    assert join_subwords(["wa@@", "ter", "lo@@"], "bpe") == ["water", "lo"]  # an output that stops inside a word
    assert join_subwords(["@@", "a@@b", "c"], "bpe") == ["a@@b", "c"]
    assert join_subwords(["ter", "▁wa", "ter"], "sentencepiece") == ["ter", "water"]
    assert join_subwords(["a", "<0xE4>", "▁b"], "sentencepiece") == ["a\ufffd", "b"]


def test_numbers_come_back_as_in_the_authors_evaluation():
    source = ["on", "march", "15", "it", "paid", "$", "1,250.5", "of", "17", ",", "not", "2nd"]
    # by length, the last one of several, and only words that begin with a digit; "2nd" has three characters
    back = restore_digits(["paid", "#,###.#", "in", "##", "####", "###", "a#"], source)
    assert back == ["paid", "1,250.5", "in", "17", "####", "2nd", "a#"]


@pytest.mark.parametrize("name", ["none", "ptb_gigaword"])
def test_a_model_of_text_without_digits_reads_none_and_gets_them_back(dataset, tmp_path, name):
    """DUC after Gigaword: `#` in, the source's numbers out, references as published."""
    # the release has `#`; from raw text the tokeniser makes it
    figures = ("##", "####") if name == "none" else ("34", "1997")
    release = [("shares fell {} percent in {}".format(*figures), "shares fall {} percent".format(*figures))] * 5
    trained = encode(dataset(release, release[:1], [], references=()), tmp_path, tokenizer=name)
    duc = dataset(test=[("shares fell 12 percent in 1998", "shares drop 12 percent")], references=(), digits="#")
    test = encode_test(duc, trained.folder, tmp_path)
    row = test.splits["test"]
    assert row.source_tokens[0] == ["shares", "fell", "##", "percent", "in", "####"] and UNK not in row.source[0]
    pair = row.pairs[0]
    assert pair.source == "shares fell 12 percent in 1998"
    output = output_text(["shares", "fall", "##", "percent"], test.options, source=pair.source, digits=test.digits)
    assert output == "shares fall 12 percent"
    assert reference_text(pair.references[0], test.options, digits=test.digits) == "shares drop 12 percent"
    plain = encode_test(dataset(test=[("fell 12 in 1998", "x")]), trained.folder, tmp_path)
    assert plain.digits is None and (UNK in plain.splits["test"].source[0]) == (name == "none")
    assert output_text(["##"], plain.options, source="fell 12") == "##"


@settings(max_examples=80, deadline=None)
@given(st.text(min_size=0, max_size=60), st.sampled_from(TOKENIZERS))
def test_no_token_holds_white_space_and_no_letter_is_lost(text, name):
    tokens = tokenizer(name, "en")(text)
    assert all(token and token == "".join(token.split()) for token in tokens)
    if name == "none":
        assert "".join(tokens) == "".join(text.split())


def test_long_and_empty_pairs_are_left_out_test_pairs_never(dataset, tmp_path):
    train = [("a b c d", "x"), ("a", "x y z"), ("a", ""), ("a b", "x y")]
    data = dataset(train, train, [("a b c d e", "x y z w")])
    limits = {"max_source_tokens": 3, "max_target_tokens": 2}
    got = encode(data, tmp_path, **limits)
    assert got.report["left_out"] == {"train": 3, "dev": 0} and len(got.splits["train"]) == 1
    assert got.splits["train"].source_tokens[0] == ["a", "b"]
    opennmt = encode(data, tmp_path, filter_dev=True, **limits)
    assert opennmt.report["left_out"] == {"train": 3, "dev": 3}
    assert [pair.source for pair in opennmt.splits["dev"].pairs] == ["a b"] and len(opennmt.splits["dev"]) == 1
    assert len(encode_test(data, opennmt.folder, tmp_path).splits["test"].source[0]) == 5
    with pytest.raises(DataError, match="no training pair is short enough"):
        encode(data, tmp_path, max_source_tokens=1, max_target_tokens=1, min_count=5)


def test_what_cannot_be_encoded_is_told(little, dataset, tmp_path):
    with pytest.raises(ConfigError, match=r"encode\.vocab_size must be set: bpe"):
        options(subword="bpe")
    with pytest.raises(ConfigError, match=r"encode\.subword=bpe cannot be learned from raw text"):
        options(tokenizer="raw", subword="bpe")
    with pytest.raises(DataError, match=r"(?s)encode\.vocab_size=5 is too small.*BPE") as error:
        encode(little, tmp_path, subword="bpe", vocab_size=5)
    assert "encode.vocab_size=5" in str(error.value)
    least = int(re.search(r"vocab_size=(\d+) or more", str(error.value))[1])
    assert encode(little, tmp_path / "least", subword="bpe", vocab_size=least).sizes[0] <= least + FIRST
    with pytest.raises(DataError, match="too small"):
        encode(little, tmp_path, subword="bpe", vocab_size=least - 1)
    with pytest.raises(DataError, match="little has no train pairs"):
        encode(dataset(dev=DEV), tmp_path)
    with pytest.raises(DataError, match="not a folder of encoded pairs"):
        module.open_encoded(tmp_path)
    trained = encode(little, tmp_path)
    with pytest.raises(DataError, match="little has no test pairs"):
        encode_test(dataset(TEXT, DEV), trained.folder, tmp_path)
    whole = [path for path in (tmp_path / "encoded").iterdir() if not path.name.startswith(".")]
    assert whole == [trained.folder]  # nothing half made is left


def test_the_cache_is_keyed_by_train_dev_and_options_not_by_test(little, dataset, tmp_path):
    one = encode(little, tmp_path, min_count=2)
    again = encode(dataset(TEXT, DEV, TEXT), tmp_path, min_count=2, subword="none")
    assert again.folder == one.folder and again.sha256 == one.sha256
    for other in (encode(little, tmp_path, min_count=3), encode(dataset(TEXT, [("x", "y")]), tmp_path, min_count=2)):
        assert other.folder != one.folder and other.sha256 != one.sha256
    assert encode(dataset(TEXT, DEV, name="elsewhere"), tmp_path, min_count=2).sha256 == one.sha256  # same content


@pytest.mark.parametrize("subword, joint", [("none", False), ("bpe", False), ("bpe", True), ("sentencepiece", True)])
def test_a_test_set_is_encoded_as_training_data_are_and_beside_a_finished_model_too(dataset, tmp_path, subword, joint):
    further = [*TEXT[:3], ("Le zèbre boit de l'eau.", "The zebra drinks water.")]
    size = None if subword == "none" else 120
    trained = encode(dataset(TEXT, further), tmp_path, tokenizer="moses", subword=subword, joint=joint, vocab_size=size)
    test = encode_test(dataset(test=further, name="other"), trained.folder, tmp_path)
    assert set(test.splits) == {"test"}
    assert test.source_vocab == trained.source_vocab and test.options == trained.options
    for side in ("source", "target"):
        rows = [[row.tolist() for row in getattr(part, side)] for part in (trained.splits["dev"], test.splits["test"])]
        assert rows[0] == rows[1] and len(rows[0]) == 4
    kept = tmp_path / "cell" / "encoding"
    module.keep_encoding(trained.folder, kept)
    assert encode_test(dataset(test=further, name="other"), kept, tmp_path).folder == test.folder
    beside = module.open_encoded(kept)
    assert beside.splits == {} and beside.target_vocab == trained.target_vocab
    assert beside.languages == {"source": "fr", "target": "en"}
    assert beside.cut("source")(further[3][0]) == test.splits["test"].source_tokens[3]


def test_raw_text_of_few_words_has_words_as_units(dataset, tmp_path):
    words = "сегодня утром маленький мужчина видит красную лошадь в городе".split()
    train = [(" ".join(words[i % 3 :]), " ".join(words[: 3 + i % 5])) for i in range(40)]
    made = encode(dataset(train), tmp_path, tokenizer="raw", subword="sentencepiece", joint=False)
    assert max(len(row) for row in made.splits["train"].source) <= len(words) + 1
