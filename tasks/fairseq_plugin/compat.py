"""All patches that fairseq 0.12.3 needs on Python >= 3.14, torch >= 2.6, numpy >= 2 and Hydra 1.3.

No other module patches fairseq. The patches, and the reason for each:

* Importing fairseq runs `logging.basicConfig(level=DEBUG)`, so the program's own logging is restored afterwards.
* `torch.load` reads with `weights_only=True`. The plain containers of a fairseq checkpoint are declared safe; the check
  itself stays on.
* Hydra 1.3 merges ConfigStore nodes with yaml files of the same name ("automatic schema matching"), so fairseq's nodes
  `config`, `task/translation`, ... would interfere with ours. `detach_config_store` removes them before we train. It is
  not called anywhere else, because fairseq's own commands need these nodes.
* fairseq's compiled extensions are not installed. Batches are made by `tasks.data.examples.batch_by_size_vec`, and the
  default scorer of `fairseq-generate` is fairseq's own scorer for sacreBLEU, on the tokens that it prints.
* Importing `fairseq.pdb` creates a lock between processes, which needs a writable /dev/shm. If there is none, a lock
  between threads is created instead, which affects only fairseq's own debugger.
* Importing fairseq imports scikit-learn, scipy.stats, wandb and TensorBoard, which takes longer than fairseq itself. Each
  is imported when fairseq calls it.
* torch's optimisers import torch._dynamo, the front end of torch.compile, when first used; ours are never compiled.
* `hydra.experimental` refuses or warns in Hydra 1.3, and 1.4 has none; fairseq finds the same functions in `hydra`.
* Python 3.14 represents `Optional[X]` as `X | None`, which fairseq's option parser does not understand.
"""

import argparse
import importlib
import importlib.util
import logging
import multiprocessing
import sys
import threading
import types
import typing
import warnings

import hydra
import numpy as np
import torch

from tasks.data.examples import batch_by_size_vec
from tasks.later import later

LATER = ("sklearn", "sklearn.metrics", "scipy.stats", "wandb", "torch.utils.tensorboard")


def _import_fairseq_quietly() -> None:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.INFO)  # fairseq reports every optional package that is missing
        locks = multiprocessing.Lock
        multiprocessing.Lock = _lock
        try:
            with later(*LATER, **{"hydra.experimental": hydra}):
                if "fairseq" not in sys.modules:
                    # fairseq reads its options while it is imported, so their reader is replaced in an empty package first
                    spec = importlib.util.find_spec("fairseq")
                    package = sys.modules["fairseq"] = importlib.util.module_from_spec(spec)
                    importlib.import_module("fairseq.dataclass.utils").interpret_dc_type = _option_type
                    spec.loader.exec_module(package)
                for module in ("fairseq.tasks", "fairseq.models", "fairseq.criterions", "fairseq.options"):
                    importlib.import_module(module)
        finally:
            multiprocessing.Lock = locks
            logging.disable(logging.NOTSET)
            root.handlers[:] = handlers
            root.setLevel(level)


def _lock() -> typing.Any:
    try:
        return multiprocessing.get_context().Lock()
    except OSError:
        return threading.Lock()


def _option_type(field_type: typing.Any) -> typing.Any:
    """The type of an option's values: `X` for `Optional[X]`."""
    if isinstance(field_type, str):
        raise RuntimeError("field should be a type")
    if field_type is typing.Any:
        return str
    if typing.get_origin(field_type) in (typing.Union, types.UnionType):
        first, *rest = typing.get_args(field_type)
        return first if rest == [type(None)] else field_type
    return field_type


def install() -> None:
    """Import fairseq and make it usable. Idempotent."""
    _import_fairseq_quietly()
    from fairseq.scoring import bleu

    fast = types.ModuleType("fairseq.data.data_utils_fast")
    fast.batch_by_size_vec = batch_by_size_vec  # type: ignore[attr-defined]
    fast.batch_by_size_fn = fast.batch_fixed_shapes_fast = None  # type: ignore[attr-defined]  # no data set here needs them
    sys.modules[fast.__name__] = fast
    bleu.Scorer = lambda cfg: bleu.SacrebleuScorer(bleu.SacrebleuConfig(sacrebleu_tokenizer="none"))
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        if plain := getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None):
            plain.__dict__.setdefault("__dynamo_disable", plain)  # what torch._disable_dynamo would assign
    multiarray = np._core.multiarray if hasattr(np, "_core") else np.core.multiarray
    torch.serialization.add_safe_globals(
        [
            argparse.Namespace,  # legacy model configs
            np.ndarray,
            np.dtype,
            multiarray._reconstruct,
            multiarray.scalar,
            *(type(np.dtype(t)) for t in ("int64", "float64", "int32", "float32", "bool")),
        ]
    )
    # warnings about outdated calls inside fairseq, which users cannot fix
    warnings.filterwarnings("ignore", message=".*torch.cuda.amp.*", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*'pin_memory' argument is set as true but no accelerator.*")
    if not hasattr(np, "compat"):  # numpy >= 2; fairseq still uses np.compat.long in two places
        np.compat = argparse.Namespace(long=int)  # type: ignore[attr-defined]


def detach_config_store() -> None:
    """Remove fairseq's nodes from Hydra's global ConfigStore; fairseq's own commands then fail in this process."""
    from fairseq.dataclass.configs import FairseqConfig
    from hydra.core.config_store import ConfigNode, ConfigStore

    repo = ConfigStore.instance().repo
    for name in ("config", *FairseqConfig.__dataclass_fields__):
        repo.pop(f"{name}.yaml", None)
    for group in FairseqConfig.__dataclass_fields__:
        nodes = repo.get(group)
        if isinstance(nodes, dict):
            for key in [k for k, n in nodes.items() if isinstance(n, ConfigNode) and n.provider == "fairseq"]:
                del nodes[key]
