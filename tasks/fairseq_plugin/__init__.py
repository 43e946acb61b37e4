"""The only room that imports fairseq. Importing it registers our models, tasks, criterions and schedules (`--user-dir` points here)."""

from __future__ import annotations

from tasks.fairseq_plugin import compat

compat.install()

from tasks.fairseq_plugin import (  # noqa: E402,F401
    classifier_criterion,
    classifier_task,
    criterion,
    imdb_model,
    schedule,
    seq2seq_model,
    seq2seq_task,
    snli_model,
    vqa_criterion,
    vqa_model,
    vqa_task,
)

compat.detach_config_store()
