"""Show an experiment as wandb workspaces, one per column, and a report.

Rows, columns and metrics come from the experiment file. As in the HTML report, a column has its scores, the dev curve
used for selection, score against zeros, heat maps and samples, next to the numbers in the paper. Runs are found by the
keys that `tasks.loggers.about` sets: group, `row` and `column`.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from repro.plan.experiment import Column, Experiment
from repro.plan.published import Numbers
from tasks.config import compose
from tasks.loggers.wandb import Options

ROW, COLUMN, EXPERIMENT = "row", "column", "experiment"  # keys in a run's configuration
CURVE, ZEROS = "curve/", "attention_zeros"
PINNED = ["config:task/name", "config:mapping/name", "config:seed"]  # in the list of runs; a click filters


def main(name: str, profile: str, project: str, entity: str) -> int:
    """Make and save the workspaces and the report of an experiment. Returns the exit status, 1 if wandb fails.

    An empty project or entity means the value from the environment, or else the logger's default. Raises ConfigError if
    the experiment or profile does not exist.
    """
    one = compose.experiment(name, profile)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # as in tasks/loggers/wandb.py
    import wandb

    project = os.environ.get("WANDB_PROJECT") or project or Options().project
    try:
        entity = os.environ.get("WANDB_ENTITY") or entity or wandb.Api().default_entity
        workspaces, report = make(one, entity, project, compose.published(one.published))
        report.save()  # makes the project if there is none
        print(f"report: {report.url}")
        for workspace in workspaces:
            workspace.save()
            print(f"workspace {workspace.name}: {workspace.url}")
    except Exception as error:  # any error from wandb
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        step = "it needs a key (WANDB_API_KEY or `wandb login`) and a server that answers (WANDB_BASE_URL)"
        print(f"error: wandb: {said}; {step}", file=sys.stderr)
        return 1
    return 0


def make(experiment: Experiment, entity: str, project: str, numbers: Numbers) -> tuple[list[Any], Any]:
    """Make the workspaces and the report without saving them; `numbers` are those printed in the paper."""
    import wandb_workspaces.reports.v2 as wr
    from wandb_workspaces import expr

    above = [f"Profile {experiment.profile}, seeds {', '.join(map(str, experiment.seeds))}."]
    above += ["Its numbers are not comparable with the paper's."] * (not experiment.comparable)
    above += [experiment.not_comparable, *experiment.deviations]
    workspaces, blocks = [], [wr.MarkdownBlock("\n".join(f"* {x}" for x in above if x)), wr.TableOfContents()]
    for column in experiment.columns:
        wanted = {EXPERIMENT: experiment.name, COLUMN: column.key, "profile/name": experiment.profile}
        filters = [expr.Config(key) == value for key, value in wanted.items()]
        title = f"{experiment.name} {experiment.profile}: {column.key}"
        workspaces.append(_workspace(entity, project, title, column, filters))
        said = " and ".join(f"Config('{key}') = '{value}'" for key, value in wanted.items())
        runs = wr.Runset(entity=entity, project=project, name=column.label, filters=said, groupby=[f"config.{ROW}"])
        table = wr.MarkdownBlock(printed(experiment, column, numbers))
        blocks += [wr.H1(column.label), table, wr.PanelGrid(runsets=[runs], panels=panels(column))]
    title = f"{experiment.title[:100]} ({experiment.profile})"
    report = wr.Report(entity=entity, project=project, title=title, blocks=blocks, width="fluid")
    return workspaces, report


def _workspace(entity: str, project: str, name: str, column: Column, filters: Sequence[Any]) -> Any:
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    pinned = [*PINNED, *(f"summary:{show.metric}" for show in column.show)]
    order = [expr.Ordering(expr.Summary(column.show[0].metric), ascending=False)]
    runs = ws.RunsetSettings(filters=filters, groupby=[expr.Config(ROW)], order=order, pinned_columns=pinned)
    settings = {"settings": ws.WorkspaceSettings(x_axis="epoch"), "runset_settings": runs}
    section = ws.Section(name=column.label, panels=panels(column), is_open=True)
    return ws.Workspace(entity=entity, project=project, name=name, sections=[section], **settings)


def panels(column: Column) -> list[Any]:
    """The panels of a column: each score by row, mean and deviation over seeds; the dev curve; score against zeros; heat maps; samples."""
    import wandb_workspaces.reports.v2 as wr

    by_row = {"groupby": wr.Config(ROW), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    scores: list[Any] = [wr.BarPlot(title=s.label, metrics=[wr.SummaryMetric(s.metric)], **by_row) for s in column.show]
    if column.select:
        by_epoch = {"x": "epoch", "y": [f"{CURVE}{column.select.metric}"]}
        scores.append(wr.LinePlot(title=column.select.metric, **by_epoch, **by_row))
    first, zeros = column.show[0], next((show.metric for show in column.show if show.metric.endswith(ZEROS)), None)
    if zeros and first.metric != zeros:
        axes = {"x": wr.SummaryMetric(zeros), "y": wr.SummaryMetric(first.metric)}
        scores.append(wr.ScatterPlot(title=f"{first.label} against zeros", **axes))
    media = [wr.MediaBrowser(title=kind, media_keys=[f"{kind}/{column.split}"]) for kind in ("attention", "samples")]
    return [*scores, *media, wr.RunComparer(diff_only="split")]


def printed(experiment: Experiment, column: Column, numbers: Numbers) -> str:
    """A Markdown table with the paper's numbers for the rows of a column."""
    groups = [(g, metric, header) for g in column.published for metric, header in zip(g.metrics, g.headers)]
    if not groups or not numbers:
        return "The paper prints no number for this column."
    lines = [["row", *(f"{group.label}: {header}" for group, _, header in groups)], ["---"] * (1 + len(groups))]
    for row in experiment.rows:
        theirs = [numbers.get((row.published, group.dataset, metric)) for group, metric, _ in groups]
        lines.append([row.label, *("–" if number is None else number.text() for number in theirs)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
