"""Command lines of sweeps: which cells they are, what is left out and what is wrong; no cell is trained here."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from repro.errors import ConfigError, StoreError
from repro.files import write_json
from repro.identity import asked_id, family
from repro.store import Store
from sparse_attention import registry
from tasks.commands import compare, reproduce, search, sweep
from tasks.config import compose
from tasks.config.request import REPRODUCE, TRAIN, Request


def read(*arguments: str) -> Request:
    words = [word for word in arguments if word != "--plan"]
    return Request.read(words, TRAIN, plan=len(words) < len(arguments), many=True)


@pytest.fixture
def resolved(tmp_path):
    def make(*arguments):
        return sweep.outline(read("task=toy", *arguments, f"paths.outputs={tmp_path}"))

    return make


def cells(found, *keys):
    """Values of the slots, by dotted keys."""

    def at(config, key):
        for part in key.split("."):
            config = config.get(part)
        return config

    return [tuple(at(w.config, key) for key in keys) for w in found.slots]


def grid(name):
    return compose.page("mapping", name)["grid"]


def test_each_mapping_over_its_own_grid_but_for_parameters_that_are_set(resolved):
    swept = resolved("mapping=sparsegen_lin,fusedmax", "seed=1,2", "grid=paper")
    found = cells(swept, "mapping.name", "mapping.lam", "seed")
    wanted = [(m, lam, s) for m in ("sparsegen_lin", "fusedmax") for lam in grid(m)["lam"] for s in (1, 2)]
    assert sorted(found) == sorted(wanted)
    found = cells(resolved("mapping=fusedmax", "mapping.lam=0.3,0.4", "grid=paper"), "mapping.lam")
    assert found == [(0.3,), (0.4,)]
    every = cells(resolved("mapping=fusedmax", "mapping.gamma=0.5", "grid=paper"), "mapping.lam", "mapping.gamma")
    assert every == [(lam, 0.5) for lam in grid("fusedmax")["lam"]]


def test_a_glob_takes_what_fits_and_names_the_rest(resolved):
    found = resolved("mapping=glob(*)")
    names = {name for (name,) in cells(found, "mapping.name")}
    assert {"softmax", "fusedmax", "sparsemax"} <= names and not any(n.startswith("continuous") for n in names)
    assert names | {k.partition("=")[2] for k in found.left_out} == set(compose.names_in("mapping")) and not found.wrong
    assert "negative" in found.left_out["mapping=sum_normalization"]
    assert "density" in found.left_out["mapping=continuous_softmax"]
    assert "must be set" in found.left_out["mapping=custom"]
    some = resolved("mapping=glob([sparse*,soft*],exclude=sparsegen*)")
    assert {n for (n,) in cells(some, "mapping.name")} == {"softmax", "sparsecone", "sparsehourglass", "sparsemax"}
    # a parameter that a mapping does not have: those that have it are swept
    lam = resolved("mapping=glob([soft*,fused*])", "mapping.lam=0.1,0.2")
    assert (
        "fusedmax" in {n for (n,) in cells(lam, "mapping.name")}
        and "mapping.lam" in lam.left_out["mapping=softmax, mapping.lam=0.1"]
    )


def test_a_mapping_without_the_swept_parameter_runs_once(resolved, capsys):
    found = resolved("mapping=softmax,fusedmax,sparsemax", "mapping.lam=0.05,0.3", "seed=1,2")
    of = [(m.get("name"), m.get("lam"), seed) for m, seed in cells(found, "mapping", "seed")]
    once = [(name, None, seed) for name in ("softmax", "sparsemax") for seed in (1, 2)]
    swept = [("fusedmax", lam, seed) for lam in (0.05, 0.3) for seed in (1, 2)]
    assert sorted(of, key=str) == sorted([*once, *swept], key=str) and not found.wrong and not found.left_out
    sweep.tell(found)
    assert capsys.readouterr().err == "mapping.lam is not a parameter of softmax, sparsemax: run once, without it\n"
    found = resolved("mapping=fusedmax", "mapping.lam=-1,0.2")  # what is wrong stands beside what can run
    assert cells(found, "mapping.lam") == [(0.2,)] and list(found.wrong) == ["mapping.lam=-1"]
    assert "lam >= 0" in found.wrong["mapping.lam=-1"]


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The override that names a plugin with one mapping, `ourmax`, which has one parameter, `beta`."""
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    file = tmp_path / "ours.py"
    signature = '@sa.register("ourmax", summary="ours")\ndef ourmax(scores, mask, beta=2.0):\n    return scores\n'
    file.write_text(f"# {tmp_path}\nimport sparse_attention as sa\n\n\n{signature}")
    return f"plugins=[{file}]"


@pytest.mark.parametrize(
    "typed", ["mapping=softmax,ourmax,hardmax", "mapping=softmax,custom,hardmax mapping.name=ourmax"]
)
@pytest.mark.parametrize("plus", ["", "+"])
def test_a_mapping_of_a_plugin_stands_beside_others(resolved, plugin, typed, plus):
    """By its name or as `custom`; each mapping takes its own parameters only, and none is lost."""
    found = resolved(*typed.split(), f"{plus}mapping.beta=1,3", "mapping.gamma=0.5", plugin)
    expected = [("softmax", 0.5, None), ("ourmax", None, 1.0), ("ourmax", None, 3.0), ("hardmax", None, None)]
    of = [(m["name"], m.get("gamma"), m.get("beta")) for (m,) in cells(found, "mapping")]
    assert of == expected and not found.wrong
    assert found.without["mapping.beta"] == ["softmax", "hardmax"]
    if "custom" in typed:
        assert found.without["mapping.name"] == ["softmax", "hardmax"]


def test_one_mapping_of_a_plugin_is_the_same_cell_by_its_name_and_as_custom(plugin):
    forms = ["mapping=ourmax mapping.beta=3", "mapping=custom mapping.name=ourmax +mapping.beta=3"]
    forms.append("mapping=custom mapping.name=ourmax mapping.beta=3")
    with compose.composer() as composed:
        one, *others = [composed(["task=toy", plugin, *form.split()])["mapping"] for form in forms]
        twice = plugin.replace("]", "," + plugin.removeprefix("plugins=["))
        configs = [composed(["task=toy", p, forms[0].split()[0]]) for p in (plugin, twice)]
        assert len({asked_id(config, family("tasks.cells.seq2seq")) for config in configs}) == 1
    assert one == {"name": "ourmax", "beta": 3.0, "at": {}, "grid": {}} and all(other == one for other in others)
    with pytest.raises(ConfigError, match="has a mapping of your own among others"):
        search.main(read("task=toy", plugin, "mapping=softmax,ourmax", "hydra/sweeper=optuna"))


ERRORS = """
mapping=softmax,ourmx PLUGIN | 'ourmx' is unknown (did you mean 'ourmax'?) | plugins has: ourmax
mapping=softmax,ourmax | needs plugins=[FILE.py]; mapping=sparsemax mapping.name=softmax | not for sparsemax
mapping=softmax,ourmax mapping.betta=1,2 PLUGIN | mapping.betta is not a parameter of softmax, ourmax | 'beta'
mapping=glob(s*max) mapping.name=ourmax PLUGIN | is for mapping=custom; mapping=ourmax mapping.betta=1 PLUGIN | mapping.betta
mapping=ourmax mapping.name=softmax PLUGIN | is for mapping=custom, not for
mapping=glob(fo*) | matches nothing | fusedmax; mapping.gamma=interval(0,1) | optuna; mapping=fusedmx,softmax | 'fusedmax'
optim.lr=-1,-2 | optim.lr=-1 | optim.lr=-2; mapping=glob(*) train.max_epochs=0 | train.max_epochs=0
mapping=softmax,fusedmax mapping.lamda=1,2 | mapping.lamda is not a parameter of softmax, fusedmax | 'lam'
"""


@pytest.mark.parametrize("line", ERRORS.strip().replace("\n", ";").split(";"))
def test_errors(resolved, plugin, line):
    typed, *said = line.replace("PLUGIN", plugin).split(" | ")
    with pytest.raises(ConfigError) as caught:
        resolved(*typed.split())
    assert all(text.strip() in str(caught.value) for text in said), caught.value


def test_an_experiment_has_its_rows_and_grids_or_is_unknown(tmp_path):
    request = Request.read(["seeds=1,2", "profile=paper", "rows=sparsehourglass"], REPRODUCE, ["laha2018_table2"])
    (plan,) = reproduce.outlined(request)
    one, slots = plan.experiment, plan.slots
    assert one.seeds == (1, 2) and [row.label for row in one.rows] == ["sparsehourglass"]
    assert {w.config["mapping"]["q"] for w in slots} == set(grid("sparsehourglass")["q"])
    assert {w.seed for w in slots} == {1, 2}
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        compare.select(Store(tmp_path), {"experiment": "dmo"})


def test_a_sweep_is_never_overwritten_by_another(tmp_path):
    asked = read("task=toy", "mapping.gamma=1,2", "sweep=mine", "runtime.workers=2")
    found = sweep.outline(asked)
    assert sweep.earlier(asked, tmp_path) == {}
    folder = sweep.folder_of(tmp_path, asked, found)
    compare.write_manifest(folder, sweep.lasting(asked), [{"cell": "toy/softmax/0"}])
    again = read("mapping.gamma=1,2", "task=toy", "sweep=mine", "runtime.workers=7")
    assert sweep.earlier(again, tmp_path)["sweep"] == "mine" and sweep.folder_of(tmp_path, again, found) == folder
    with pytest.raises(ConfigError, match=r"exists already, with other arguments: mapping\.gamma=1,2 task=toy"):
        sweep.earlier(read("task=toy", "mapping.gamma=1,3", "sweep=mine"), tmp_path)
    nameless = read("task=toy", "mapping.gamma=1,2")
    folders = {sweep.folder_of(tmp_path, nameless, found) for _ in range(3)}
    assert len(folders) == 3 and all(f.name.startswith("toy-softmax_") for f in folders)
    told = json.loads((folder / "manifest.json").read_text())
    assert told["asked"] == ["mapping.gamma=1,2", "task=toy"] and "code" in told


def test_seeds_can_be_added_to_a_sweep(tmp_path, capsys):
    place, root = f"paths.outputs={tmp_path}", tmp_path / "sweeps"

    def grown(*words):
        asked = read("task=toy", "mapping=softmax,sparsemax", place, *words)
        return asked, sweep.grown(asked, sweep.outline(asked), sweep.earlier(asked, root))

    first, same = grown("seed=1,2", "sweep=mine")
    assert same is first, "there is no such sweep yet"
    folder = sweep.folder_of(root, first, sweep.outline(first))
    made = [{"cell": "toy/softmax/0", "seed": seed} for seed in (1, 2)]
    compare.write_manifest(folder, sweep.lasting(first), made)
    asked = {"seed=3": "1,2,3", "seed=3,1": "1,2,3", "seed=1": "1,2", "": "1,2"}
    for words, seeds in (asked | {"seed=range(7,9) runtime.workers=3": "1,2,7,8"}).items():
        _, more = grown("sweep=mine", *words.split())
        assert [w for w in more.typed if w.startswith("seed")] == [f"seed={seeds}"] and "seed=3" not in more.overrides
        assert {w.seed for w in sweep.outline(more).slots} == {int(n) for n in seeds.split(",")}
        assert sweep.folder_of(root, more, sweep.outline(more)) == folder
        assert f"it had the seeds 1, 2; it now has seed={seeds}" in capsys.readouterr().err
    for words in (["seed=1,2"], ["seed=3,2,1"]):
        asked, more = grown("sweep=mine", *words)
        assert more is asked and capsys.readouterr().err == ""
    asked, more = grown("seed=3")
    assert more is asked, "a sweep without a name is a new one"
    with pytest.raises(ConfigError, match="only seeds can be added"):
        grown("sweep=mine", "seed=3", "optim.lr=0.3")


def test_the_manifest_of_a_sweep_is_what_was_written(tmp_path):
    compare.write_manifest(tmp_path, ["seed=1,2"], [{"cell": "toy/softmax/0123"}])
    path = tmp_path / "manifest.json"
    whole = path.read_text()
    assert compare.read_manifest(tmp_path)["cells"] == [{"cell": "toy/softmax/0123"}]
    assert compare.read_manifest(tmp_path / "x") is None
    path.write_text(whole.replace("seed=1,2", "seed=1,3"))
    with pytest.raises(StoreError, match=r"manifest\.json is not what was written"):
        compare.read_manifest(tmp_path)
    path.write_text("{")
    (store := tmp_path / "store" / "sweeps").mkdir(parents=True)
    (store / "mine").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="cannot be read"):
        compare.main(Request.read(["sweep=mine", f"paths.outputs={store.parent}"]))
    path.write_text(json.dumps({k: v for k, v in json.loads(whole).items() if k != "checksum"}))
    with pytest.raises(StoreError, match="has no checksum"):
        compare.read_manifest(tmp_path)


def test_a_sweep_says_what_became_of_its_other_cells(tmp_path, capsys):
    """Failed, stopped, deleted or never run."""
    store, root = Store(tmp_path), tmp_path / "sweeps" / "mine"
    states = {"failed": "failed", "stopped": "running", "never run": "", "deleted": "", "done": "done"}
    cells = []
    for n, (name, state) in enumerate(states.items()):
        entry = store.entry("toy", "softmax", key := name.replace(" ", "_"))
        if state:
            why = {"error": "no memory\nTraceback"} if state == "failed" else {"stage": "epoch 2/3"}
            entry.set_status(state, **why)
        if state == "done":
            write_json(entry.path("manifest.json"), {})
        state = "done" if name == "deleted" else "queued"
        cells.append({"cell": f"toy/softmax/{key}", "point": {"mapping.gamma": n}, "seed": 1, "state": state})
    compare.write_manifest(root, ["mapping.gamma=0,1,2", "task=toy"], cells)
    told = compare.read_manifest(root)
    assert compare.points(told)["never_run"] == {"mapping.gamma": 2}
    lost = {one.state: one for one in compare.unfinished(store, told)}
    assert [*lost] == [name for name in states if name != "done"]
    assert (lost["failed"].why, lost["stopped"].why, lost["deleted"].why) == ("no memory", "in epoch 2/3", "")
    said = "toy: softmax (gamma=0), seed 1: failed: no memory"
    assert compare.main(Request.read(["sweep=mine", "mapping.gamma=0", f"paths.outputs={tmp_path}"])) == 1
    printed = capsys.readouterr().out
    assert said in printed and "WARNING: 1 of 1 cells failed." in printed and "gamma=1" not in printed
    (folder,) = (tmp_path / "compare").iterdir()  # the files of a comparison without a result say so too
    assert all(said in (folder / f"table.{kind}").read_text() for kind in ("txt", "md"))
    (line,) = csv.DictReader((folder / "runs.csv").open())
    assert (line["mapping.gamma"], line["state"], line["reason"]) == ("0", "failed", "no memory")


def test_a_plan_needs_no_folder_that_can_be_written(resolved, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compose, "_unwritable", lambda folder: "Read-only file system")
    with pytest.raises(ConfigError, match="cannot be written: Read-only file system"):
        resolved("mapping=softmax,sparsemax")
    asked = ["task=toy", "mapping=softmax,sum_normalization,sparsemax", "--plan", f"paths.outputs={tmp_path}"]
    assert sweep.plan(read(*asked)) == 0
    told, said = capsys.readouterr().out.splitlines(), "mapping=sum_normalization  cannot be run: mapping=sum_normal"
    assert any(line.startswith(f"  {said}") for line in told) and "1 cannot be run: nothing starts" in told[-1]
    assert len(sweep.outline(read(*asked)).slots) == 2
    (one,) = reproduce.outline([compose.experiment("demo", "demo")], writes=False)
    assert one.slots


def test_a_store_that_can_only_be_read_shows_the_table_and_names_the_next_step(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise StoreError("Read-only file system")

    monkeypatch.setattr(compare.comparison, "write", refuse)
    with pytest.raises(StoreError, match="no files were written: Read-only file system; to=FOLDER"):
        compare.show([], tmp_path, "The title", [], [])
    assert "The title" in capsys.readouterr().out


def test_add_with_several_points():
    def adapted(one, text):
        return one.adapted(added=[reproduce.added(text)])

    selects = compose.experiment("laha2018_table2", "demo")
    more = adapted(selects, "fusedmax,lam=[0.01,0.1],gamma=2")
    (row,) = more.rows[len(selects.rows) :]
    assert row.label == "fusedmax(gamma=2, lam=[0.01,0.1])" and set(row.grids) == {"demo"}
    (plan,) = reproduce.outline([more])
    swept = (w.config["mapping"] for w in plan.slots)
    mine = {(node["lam"], node["gamma"]) for node in swept if node["name"] == "fusedmax"}
    assert mine == {(0.01, 2.0), (0.1, 2.0)}
    plain = replace(selects, columns=tuple(replace(c, select=None) for c in selects.columns[:1]))
    added = adapted(plain, "fusedmax,lam=[0.01, 0.1]").rows[len(plain.rows) :]
    assert [r.label for r in added] == ["fusedmax(lam=0.01)", "fusedmax(lam=0.1)"]
    with pytest.raises(ConfigError, match="empty value"):
        adapted(plain, "fusedmax,lam=[]")
