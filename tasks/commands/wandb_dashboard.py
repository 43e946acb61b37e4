"""Show an experiment as wandb workspaces, one per column, and a report; or the runs of a task that match filters as a workspace.

Rows, columns and metrics come from the experiment file. As in the HTML report, a column has its scores, the dev curve
used for selection, score against zeros, heat maps and samples, next to the numbers in the paper. Runs are found by the
keys that `tasks.loggers.about` sets: group, `row` and `column`.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from repro.identity import family
from repro.plan.experiment import Column, Experiment, Select, Show
from repro.plan.published import Numbers
from repro.tables.compare import MOST_SCORES, NAMED, NOT_SHOWN
from tasks.config import compose
from tasks.config.options import near
from tasks.config.overrides import merged
from tasks.config.request import parse
from tasks.loggers.wandb import Options

ROW, COLUMN, EXPERIMENT = "row", "column", "experiment"  # keys in a run's configuration
CURVE, ZEROS = "curve/", "attention_zeros"
PINNED = ["config:task/name", "config:mapping/name", "config:seed"]  # in the list of runs; a click filters


def main(name: str, profile: str, project: str, entity: str, filters: Mapping[str, str]) -> int:
    """Make and save workspaces, and the report of an experiment. Returns the exit status, 1 if wandb fails.

    Without a name, only a workspace of the runs that match `filters` is made. An empty project or entity means the value from
    the environment, or else the logger's default. Raises ConfigError if an experiment, profile, task or filter does
    not exist.
    """
    one = compose.experiment(name, profile) if name else None
    column = None if one else _column(filters)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # as in tasks/loggers/wandb.py
    project = os.environ.get("WANDB_PROJECT") or project or Options().project
    try:
        import wandb

        entity = os.environ.get("WANDB_ENTITY") or entity or wandb.Api().default_entity
        if one:
            workspaces, report = make(one, entity, project, compose.published(one.published))
            report.save()  # makes the project if there is none
            print(f"report: {report.url}")
        else:
            workspaces = [matching(column, filters, entity, project)]
        for workspace in workspaces:
            workspace.save()
            print(f"workspace {workspace.name}: {workspace.url}")
    except ModuleNotFoundError as error:
        print(f"error: {error}; make setup installs it", file=sys.stderr)
        return 1
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


def _column(filters: Mapping[str, str]) -> Column:
    """What to show of the task that the filters name. Raises ConfigError if a filter is unknown or no single task is named."""
    nodes, tasks = (*compose.NODES, *compose.TOP), compose.names_in("task")
    if unknown := [k for k in filters if k.partition(".")[0] not in nodes]:
        raise compose.ConfigError(f"{unknown[0]} is unknown{near(unknown[0], nodes)}; known: {', '.join(nodes)}")
    if (task := filters.get("task", "")) not in tasks:
        what = f"task={task} is unknown{near(task, tasks)}" if task else "name an EXPERIMENT, or one task=NAME"
        raise compose.ConfigError(f"{what}; tasks: {', '.join(tasks)}")
    config = merged("main", parse([f"task={task}"]))
    metrics = family(compose.module_of(config)).METRICS
    scores = [m for m, one in metrics.items() if one.better and m not in NOT_SHOWN][:MOST_SCORES]
    shown = tuple(Show(f"test/{m}", m) for m in (*scores, *(m for m in metrics if m == ZEROS)))
    return Column(task, task, shown, select=Select(f"dev/{config.train.best_metric}"))


def matching(column: Column, filters: Mapping[str, str], entity: str, project: str) -> Any:
    """A workspace, not saved, of the runs that match filters as those of scripts/compare.py, grouped by mapping."""
    from wandb_workspaces import expr

    keys = {k: f"{k}.name" if k in NAMED else k for k in filters}
    values = {k: [yaml.safe_load(one) for one in v.strip("[]").split(",")] for k, v in filters.items()}
    wanted = [expr.Config(keys[k].replace(".", "/")).isin(v) for k, v in values.items()]
    name = "; ".join(f"{k}: {v.replace(',', ', ')}" for k, v in filters.items())
    return _workspace(entity, project, name, column, wanted, "mapping/name")


def _workspace(entity: str, project: str, name: str, column: Column, filters: Sequence[Any], by: str = ROW) -> Any:
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    pinned = [*PINNED, *(f"summary:{show.metric}" for show in column.show)]
    order = [expr.Ordering(expr.Summary(column.show[0].metric), ascending=False)]
    runs = ws.RunsetSettings(filters=filters, groupby=[expr.Config(by)], order=order, pinned_columns=pinned)
    settings = {"settings": ws.WorkspaceSettings(x_axis="epoch"), "runset_settings": runs}
    section = ws.Section(name=column.label, panels=panels(column, by), is_open=True)
    return ws.Workspace(entity=entity, project=project, name=name, sections=[section], **settings)


def panels(column: Column, by: str = ROW) -> list[Any]:
    """The panels of a column.

    They show the mean and standard deviation over seeds of each score by row (or the key `by`), the dev curve, score against zeros, heat
    maps and samples.
    """
    import wandb_workspaces.reports.v2 as wr

    by_row = {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
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
