"""A mirror of every mirrored data set at a few records each: the published layout and format, invented content."""

import gzip
import hashlib
import random
from pathlib import Path

import numpy as np
import yaml
from packed import tar

WHO = {"en": ("a man", "a woman", "the dog", "my aunt"), "fr": ("un homme", "une femme", "le chien", "ma tante")}
WHO |= {"de": ("ein Mann", "eine Frau", "der Hund", "meine Tante")}
DOES = {"en": ("paints", "sees", "carries"), "fr": ("peint", "voit", "porte"), "de": ("malt", "sieht", "trägt")}
WHAT = {"en": ("a chair", "two red boats", "the old clock on the wall behind us", "bread")}
WHAT |= {"fr": ("une chaise", "deux bateaux rouges", "la vieille horloge", "du pain")}
WHAT |= {"de": ("einen Stuhl", "zwei rote Boote", "die alte Uhr an der Wand", "Brot")}
CAPTIONS = {x: [f"{who} {does} {what}" for who in WHO[x] for does in DOES[x] for what in WHAT[x]] for x in WHO}
LABELS = {"birds": ("Tin Whistler", "Baker's Swift"), "scene": ("Sea", "Hill"), "emotions": ("glad", "calm")}
LABELS |= {"yeast": tuple(f"Class{i}" for i in range(1, 15))}
SENTENCE = "the green lamp house falls on a quiet road near old mills today and birds"
WORDS = SENTENCE.split()


def write_mirror(folder: Path) -> None:
    """Every set below `folder`, at the paths that the manifests name."""
    sets = (multi30k, mulan, hansards, pairs, entailment, imdb)
    for path, content in ((path, content) for made in sets for path, content in made().items()):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())


def write_manifests(published: Path, mirror: Path, folder: Path) -> None:
    """The published manifests with the sizes and checksums of the mirror's files."""
    for path in published.glob("*.yaml"):
        manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
        for entry in manifest.get("files", ()):
            if isinstance(entry, dict) and (mirror / entry.get("path", "-")).is_file():
                raw = (mirror / entry["path"]).read_bytes()
                entry |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        (folder / path.name).write_text(yaml.safe_dump(manifest), encoding="utf-8")


def lines(rows) -> str:
    return "".join(f"{row}\n" for row in rows)


def multi30k() -> dict[str, bytes]:
    """48 captions: train 30, val 8, each test set 5, but that of 2018 with 6."""
    parts = {"train": slice(30), "val": slice(30, 38), "test_2018_flickr": slice(40, 46)}
    parts |= dict.fromkeys(("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"), slice(38, 43))
    return {
        f"translation/multi30k/raw/{part}.{lang}.gz": gzip.compress(lines(CAPTIONS[lang][rows]).encode())
        for part, rows in parts.items()
        for lang in CAPTIONS
    }


def arff(names, rows: int, seed: int) -> str:
    """Two numbers, a constant, a place of three and a switch; the last row has no label."""
    rng = np.random.default_rng(seed)
    kinds = ["@attribute loud numeric", "@attribute 'how high' real", "@attribute same numeric"]
    kinds += ["@attribute place {north,south,west}", "@attribute rain {0,1}"]
    quoted = [name.replace("'", r"\'") for name in names]
    made = []
    for i in range(rows):
        numbers = [f"{x:.3f}" for x in rng.normal(size=2)]
        place = ("north", "south", "west")[i % 3]
        tags = [str(int(i < rows - 1 and (i + k) % len(names) in (0, 1))) for k in range(len(names))]
        made.append(",".join([*numbers, "7", place, str(i % 2), *tags]))
    return lines(["% made up", "@relation r", *kinds, *(f"@attribute '{n}' {{0,1}}" for n in quoted), "@data", *made])


def mulan() -> dict[str, str]:
    """12 and 9 examples of each set, one without a label in each file."""
    made = {}
    for seed, (name, labels) in enumerate(LABELS.items()):
        base = f"multilabel/{name}/{name}"
        made[f"{base}-train.arff"], made[f"{base}-test.arff"] = arff(labels, 12, seed), arff(labels, 9, seed + 9)
        named = "".join(f'<label name="{label}"></label>' for label in labels)
        made[f"{base}.xml"] = f'<labels xmlns="http://mulan.sourceforge.net/labels">{named}</labels>'
    return made


def hansards() -> dict[str, str]:
    """60 sentences of an invented language word by word, the last two words swapped; a possible link from the first word."""
    rng, english = random.Random(3), [w + str(i) for i in range(3) for w in WORDS[1:11]]
    texts, golds = [], []
    for _ in range(60):
        words = rng.sample(english, rng.randint(4, 8))
        order = [*range(len(words) - 2), len(words) - 1, len(words) - 2]
        texts.append(f"{' '.join(words)} ||| {' '.join(words[i][::-1] + 'e' for i in order)}")
        golds.append(" ".join([f"{s + 1}-{t + 1}" for t, s in enumerate(order)] + [f"1?{len(words)}"]))
    base = "word_alignment/hansards_enfr/enfr"
    return {f"{base}.src-tgt": lines(texts), f"{base}.gold": lines(golds)}


ARTICLE = '<REUTERS NEWID="{}"><TITLE>{}</TITLE><BODY>{}.\n    More.\n Reuter\n&#3;</BODY></REUTERS>'


def pairs() -> dict[str, str]:
    """Reuters: 22 files of ten reports, each of which comes again in the next file with a word changed."""
    made = {}
    rng, before = random.Random(5), []
    for number in range(22):
        report = [[w + "".join(rng.choices("aeiouklm", k=3)) for w in rng.choices(WORDS, k=14)] for _ in range(5)]
        again = [[*words[:-1], "again"] for words in before]
        texts = [(" ".join(words[:4]).upper(), " ".join(words)) for words in (*report, *again)]
        articles = [ARTICLE.format(f"{number}{i}", *text) for i, text in enumerate(texts)]
        made[f"summarization/reuters21578/reut2-{number:03d}.sgm"], before = lines(articles), report
    return made


def entailment() -> dict[str, str]:
    """12 pairs for training, one of them twice; 6 of dev and of test with three explanations each."""
    made, classes = {}, ("neutral", "contradiction", "entailment")
    rows = [f"{i}\t{i % 3 + 1}\t{CAPTIONS['en'][i]}\t{CAPTIONS['en'][i + 20]}" for i in range(12)]
    made["nli/snli_subset_20k/train.csv"], made["nli/snli_subset_20k/test.csv"] = lines(rows[:9]), lines(rows[8:])
    for first, part in ((0, "dev"), (10, "test")):
        texts = CAPTIONS["en"][first : first + 6]
        columns = {"s1": texts, "s2": texts[::-1], "labels": [classes[i % 3] for i in range(6)]}
        columns |= {f"preproc1_expl_{k}": [f"the {text.split()[1]} is there" for text in texts] for k in (1, 2, 3)}
        made |= {f"nli/esnli/{name}.{part}": lines(column) for name, column in columns.items()}
    return made


def imdb() -> dict[str, bytes]:
    """20 reviews for training and 10 for the test, half of them good."""
    files = [(s, k, i) for s, count in (("train", 10), ("test", 5)) for k in ("pos_9", "neg_2") for i in range(count)]
    named = [(split, *kind.split("_"), i) for split, kind, i in files]
    reviews = {f"aclImdb/{s}/{k}/{i}_{m}.txt": f"{s} {k} {CAPTIONS['en'][i]}.<br />Seen twice" for s, k, m, i in named}
    return {"sentiment/aclImdb/aclImdb_labelled.tar.xz": tar(reviews, "w:xz")}
