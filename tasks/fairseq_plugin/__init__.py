"""The only room that imports fairseq. Importing it registers our models, tasks, criterions and schedules (`--user-dir` points here)."""

from __future__ import annotations

from tasks.fairseq_plugin import compat

compat.install()

from tasks.fairseq_plugin import criterion, schedule, seq2seq_model, seq2seq_task  # noqa: E402,F401

from tasks.fairseq_plugin import classifier_criterion, classifier_task, imdb_model, snli_model  # noqa: E402,F401

from tasks.fairseq_plugin import vqa_criterion, vqa_model, vqa_task  # noqa: E402,F401

compat.detach_config_store()
