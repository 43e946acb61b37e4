"""Show an experiment as wandb workspaces, one per column, and a report; or the runs of a task that match filters as a workspace.

Rows, columns and metrics come from the experiment file. As in the HTML report, a column has its scores, the dev curve
used for selection, score against zeros, heat maps and samples, next to the numbers in the paper. Runs are found by the
keys that `tasks.loggers.about` sets: group, `row` and `column`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from repro.identity import family
from repro.plan import published as pub
from repro.plan.experiment import Column, Experiment, Select, Show
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

    Args:
        name: the experiment; an empty string for a workspace of the runs that match `filters`.
        project, entity: an empty string means the value from the environment, or else the logger's default.

    Raises:
        ConfigError: the experiment, profile, task or a filter does not exist.
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
        said = " ".join(str(error).split())[:300]
        print(
            f"error: wandb: {type(error).__name__}: {said}; it needs a key (WANDB_API_KEY or `wandb login`) and a server "
            "that answers (WANDB_BASE_URL)",
            file=sys.stderr,
        )
        return 1
    return 0


def make(
    experiment: Experiment, entity: str, project: str, records: Sequence[Mapping[str, Any]] = ()
) -> tuple[list[Any], Any]:
    """Make the workspaces and the report without saving them.

    Args:
        records: the numbers printed in the experiment's paper.

    Raises:
        ModuleNotFoundError: wandb-workspaces is not installed.
    """
    import wandb_workspaces.reports.v2 as wr
    from wandb_workspaces import expr

    above = [
        f"Profile {experiment.profile}, seeds {', '.join(map(str, experiment.seeds))}.",
        "" if experiment.comparable else "Its numbers are not comparable with the paper's.",
        experiment.not_comparable,
        *experiment.deviations,
    ]
    workspaces, blocks = [], [wr.MarkdownBlock("\n".join(f"* {x}" for x in above if x)), wr.TableOfContents()]
    for column in experiment.columns:
        wanted = {EXPERIMENT: experiment.name, COLUMN: column.key, "profile/name": experiment.profile}
        filters = [expr.Config(key) == value for key, value in wanted.items()]
        workspaces.append(
            _workspace(entity, project, f"{experiment.name} {experiment.profile}: {column.key}", column, filters)
        )
        said = " and ".join(f"Config('{key}') = '{value}'" for key, value in wanted.items())
        runs = wr.Runset(entity=entity, project=project, name=column.label, filters=said, groupby=[f"config.{ROW}"])
        blocks += [
            wr.H1(column.label),
            wr.MarkdownBlock(printed(experiment, column, records)),
            wr.PanelGrid(runsets=[runs], panels=panels(column)),
        ]
    report = wr.Report(
        entity=entity,
        project=project,
        title=f"{experiment.title[:100]} ({experiment.profile})",
        blocks=blocks,
        width="fluid",
    )
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
    wanted = [
        expr.Config(keys[k].replace(".", "/")).isin([yaml.safe_load(one) for one in v.strip("[]").split(",")])
        for k, v in filters.items()
    ]
    name = "; ".join(f"{k}: {v.replace(',', ', ')}" for k, v in filters.items())
    return _workspace(entity, project, name, column, wanted, "mapping/name")


def _workspace(entity: str, project: str, name: str, column: Column, filters: Sequence[Any], by: str = ROW) -> Any:
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    return ws.Workspace(
        entity=entity,
        project=project,
        name=name,
        sections=[ws.Section(name=column.label, panels=panels(column, by), is_open=True)],
        settings=ws.WorkspaceSettings(x_axis="epoch"),
        runset_settings=ws.RunsetSettings(
            filters=filters,
            groupby=[expr.Config(by)],
            order=[expr.Ordering(expr.Summary(column.show[0].metric), ascending=False)],
            pinned_columns=[*PINNED, *(f"summary:{show.metric}" for show in column.show)],
        ),
    )


def panels(column: Column, by: str = ROW) -> list[Any]:
    """The panels of a column.

    They show the mean and standard deviation over seeds of each score by row (or the key `by`), the dev curve, score against zeros, heat
    maps and samples.
    """
    import wandb_workspaces.reports.v2 as wr

    by_row = {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    scores: list[Any] = [
        wr.BarPlot(title=show.label, metrics=[wr.SummaryMetric(show.metric)], title_x=show.unit, **by_row)
        for show in column.show
    ]
    if column.select:
        scores.append(
            wr.LinePlot(title=column.select.metric, x="epoch", y=[f"{CURVE}{column.select.metric}"], **by_row)
        )
    zeros = next((show.metric for show in column.show if show.metric.endswith(ZEROS)), None)
    if zeros and column.show[0].metric != zeros:
        first = column.show[0]
        scores.append(
            wr.ScatterPlot(
                title=f"{first.label} against zeros", x=wr.SummaryMetric(zeros), y=wr.SummaryMetric(first.metric)
            )
        )
    media = [f"{kind}/{column.split}" for kind in ("attention", "samples")]
    return [
        *scores,
        wr.MediaBrowser(title="attention", media_keys=media[:1]),
        wr.MediaBrowser(title="samples", media_keys=media[1:]),
        wr.RunComparer(diff_only="split"),
    ]


def printed(experiment: Experiment, column: Column, records: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table with the paper's numbers for the rows of a column."""
    groups = [
        (group, metric, header) for group in column.published for metric, header in zip(group.metrics, group.headers)
    ]
    if not groups or not records:
        return "The paper prints no number for this column."
    lines = [["row", *(f"{group.label}: {header}" for group, _, header in groups)], ["---"] * (1 + len(groups))]
    for row in experiment.rows:
        theirs = [pub.lookup(records, row.published, group.dataset, metric) for group, metric, _ in groups]
        lines.append([row.label, *("–" if number is None else number.text() for number in theirs)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
