"""Published numbers: `configs/published/<table>.yaml` has one record per number, and defines the labels.

    rows: {oscarmax: {mapping: oscarmax, mapping.lam: 0.01}}    the mapping of a row and the settings that the paper states;
                                                                `differs`: a known difference in our computation
    chosen: [model.l2]                                          keys that the paper chose on dev
    datasets: {DUC2004: {data: duc2004, ROUGE-1: rouge1_r}}     our names for the data set and its metrics
    results: [{mapping: oscarmax, dataset: DUC2004, metric: ROUGE-1, value: 27.84, decimals: 2}]

A record has `mapping` (the row's label in the paper), `dataset`, `metric`, `value` and `decimals`, and also `ambiguous`
if the paper can be read in two ways. `tables.verdict` decides whether our number can be compared with the published
one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repro.errors import near
from repro.plan.experiment import Experiment


@dataclass(frozen=True)
class Published:
    """One published number and its place in the paper.

    Attributes:
        note: why the printed number is ambiguous; empty if it is not.
        mapping: our name for the row's mapping.
        settings: the row's settings, as dotted key -> value.
        chosen: keys that the paper chose on dev.
        differs: a known difference in our computation.
        data, ours: our names for the data set and the metric.
    """

    value: float
    decimals: int
    metric: str
    dataset: str
    note: str = ""
    mapping: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    differs: str = ""
    data: str = ""
    ours: str = ""

    def text(self) -> str:
        return f"{self.value:.{self.decimals}f}" + ("?" if self.note else "")


# (the row's label in the paper, data set, metric) -> the printed number
Numbers = Mapping[tuple[str, str, str], Published]


def numbers(page: Mapping[str, Any]) -> dict[tuple[str, str, str], Published]:
    """The numbers of a file, each with the file's entries for its row and data set."""
    found = {}
    for one in page["results"]:
        label, dataset, metric = one["mapping"], one["dataset"], one["metric"]
        settings = dict((page.get("rows") or {}).get(label) or {})
        names = (page.get("datasets") or {}).get(dataset) or {}
        found[label, dataset, metric] = Published(
            float(one["value"]),
            int(one.get("decimals", 2)),
            metric,
            dataset,
            note=one.get("ambiguous", ""),
            mapping=str(settings.pop("mapping", "")),
            differs=str(settings.pop("differs", "")),
            settings=settings,
            chosen=tuple(page.get("chosen") or ()),
            data=str(names.get("data", "")),
            ours=str(names.get(metric, "")),
        )
    return found


def loose_ends(experiment: Experiment, printed: Numbers) -> list[str]:
    """Names of rows or metrics in an experiment that `printed` lacks."""
    named = [(f"rows.{row.label}", "mapping", row.published) for row in experiment.rows if row.published]
    for at, group in ((f"columns.{c.key}", group) for c in experiment.columns for group in c.published):
        named += [(at, "dataset", group.dataset), *((at, "metric", metric) for metric in group.metrics)]
    known = {key: list(dict.fromkeys(k[i] for k in printed)) for i, key in enumerate(("mapping", "dataset", "metric"))}
    file = f"configs/published/{experiment.published}.yaml has" if experiment.published else "no `published` file:"
    return [
        f"{at}.published names {key} {name!r}{near(name, known[key])}; {file} {', '.join(known[key]) or 'none'}"
        for at, key, name in dict.fromkeys(named)
        if name not in known[key]
    ]
