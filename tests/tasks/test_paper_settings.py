"""The profiles `paper` and `gpu` are what the papers say, number by number: sizes, training, search, and the parameters that sizes give."""

from types import SimpleNamespace

import pytest

from tasks.config import models

OPENNMT = {
    "model": {"name": "lstm", "attention": "general", "input_feeding": True, "bidirectional": False, "embed_dim": 500}
    | {"hidden_dim": 500, "layers": 2, "dropout": 0.3, "init_range": 0.1, "residual": False, "score_scale": 1.0},
    "optim": {"name": "sgd", "lr": 1.0, "clip": 5.0, "normalize": "sentences", "weight_decay": 0.0},
    "schedule": {"name": "latched_halving", "start_decay_at": 8, "decay": 0.5},
    "train": {"max_epochs": 13, "batch_size": 64, "best_metric": "accuracy"},
    "encode": {"vocab_size": 50000, "subword": "none", "joint": False}
    | {"max_source_tokens": 50, "max_target_tokens": 50},
    "decode": {"beam": 5, "batch_size": 30, "max_len_b": 100, "length": "none", "replace_unk": False},
}
ADAM = {"name": "adam", "eps": 1e-8, "betas": [0.9, 0.999], "clip": 0.0, "weight_decay": 0.0}
STATED = {
    "translation": OPENNMT,
    "summarization": OPENNMT | {"encode": OPENNMT["encode"] | {"min_count": 5}},
    "snli": {
        "model": {"embed_dim": 300, "fixed_vectors": True, "hidden_dim": 100, "dropout": 0.1, "word_dropout": 0.0},
        "optim": ADAM | {"lr": 3e-4},
        "schedule": {"name": "fixed"},
        "train": {"max_epochs": 200, "batch_size": 25},
        "encode": {"lowercase": False},
    },
    "imdb": {
        "model": {"embed_dim": 300, "fixed_vectors": True, "hidden_dim": 128, "score_dim": 128, "dropout": 0.0}
        | {"widths": [0.1, 0.5], "ridge": 0.01, "scaled": True},
        "optim": ADAM | {"lr": 1e-3, "weight_decay": 1e-4},
        "schedule": {"name": "fixed"},
        "train": {"max_epochs": 10, "batch_size": 16, "best_metric": "macro_f1"},
        "encode": {"tokenizer": "wordpunct_br", "lowercase": False, "max_tokens": None, "vocab_size": None},
    },
    "vqa": {
        "model": {"layers": 6, "hidden_dim": 512, "heads": 8, "ff_dim": 2048, "dropout": 0.1, "embed_dim": 300}
        | {"flat_mlp_dim": 512, "flat_out_dim": 1024, "basis_side": 10, "basis_variance": 0.001, "ridge": 0.01},
        "optim": ADAM | {"lr": 1e-4, "betas": [0.9, 0.98], "eps": 1e-9},
        "schedule": {"name": "epoch_steps", "warmup_epochs": 3, "decay_epochs": [10, 12], "decay": 0.2},
        "train": {"max_epochs": 13, "batch_size": 64},
        "encode": {"max_tokens": 14, "min_answer_count": 9},
    },
    "snli_esim": {  # Chen et al. 2017
        "model": {"embed_dim": 300, "hidden_dim": 300, "dropout": 0.5, "fixed_vectors": False},
        "optim": ADAM | {"lr": 4e-4, "clip": 10.0},
        "train": {"batch_size": 32},
    },
    "fertility": {
        "model": {"embed_dim": 256, "hidden_dim": 256, "layers": 2, "dropout": 0.2, "forward_links": True},
        "optim": {"name": "adam", "lr": 1e-3, "clip": 0.0, "betas": [0.9, 0.999]},
        "train": {"max_epochs": 10, "batch_size": 64},
    },
}
# What the data of the profile gpu make necessary: raw texts, no GloVe, images without features.
OF_DATA = {"encode.tokenizer", "encode.vectors", "encode.vector_dim", "model.cnn_channels", "model.cnn_strides"}


@pytest.mark.parametrize("task", STATED)
def test_a_setting_has_the_papers_numbers_and_that_of_the_profile_gpu_differs_in_the_data_alone(composed, task):
    gpu, paper = (composed([f"task={task}", f"profile={profile}"]) for profile in ("gpu", "paper"))
    for node, values in STATED[task].items():
        assert {key: paper[node][key] for key in values} == values, node
    nodes = {*gpu} - {"data", "task", "profile", "runtime"}
    changed = {f"{n}.{k}" for n in nodes if isinstance(gpu[n], dict) for k in gpu[n] if gpu[n][k] != paper[n][k]}
    assert changed <= OF_DATA, changed
    assert [n for n in nodes if not isinstance(gpu[n], dict) and gpu[n] != paper[n]] == []
    assert any(text.startswith("data: ") for text in gpu["task"]["deviations"])
    assert {t for t in paper["task"]["deviations"] if t[:5] not in ("data:", "GloVe")} <= {*gpu["task"]["deviations"]}
    assert (gpu["runtime"]["workers_per_device"], paper["runtime"]["workers_per_device"]) == ("auto", 1)


WORDS = 700


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def lstm(inputs: int, units: int) -> int:
    return 4 * units * (inputs + units) + 8 * units  # torch has two biases


COUNTS = {
    "snli_esim": WORDS * 300 + 4 * lstm(300, 300) + 2 * linear(8 * 300, 300) + linear(300, 3),
    "fertility": WORDS * 256 + 2 * lstm(256, 256) + 2 * lstm(512, 256) + linear(512, 11),
}


@pytest.mark.parametrize("task", COUNTS)
def test_a_model_has_as_many_parameters_as_counted_by_hand(composed, task):
    """Of the models that no golden cell has."""
    config = composed([f"task={task}", "profile=paper"])
    known = {"size": WORDS, "classes": "abc", "vectors": None, "sizes": (WORDS, WORDS)}
    model = models.build(config["task"]["family"], config["model"], config["mapping"], SimpleNamespace(**known))
    assert sum(p.numel() for p in model.parameters()) == COUNTS[task]
