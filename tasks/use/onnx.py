"""Write a model as one ONNX file. docs/guides/predict.md lists the inputs and outputs of each kind of model."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sparse_attention as sa
from repro.errors import StoreError
from repro.protocol import family
from tasks.config import compose, models
from tasks.use.model import Loaded

FILE = "model.onnx"


def refused(config: Mapping[str, Any]) -> str | None:
    """Why a model cannot be written as ONNX (a part of a sentence); None if models of its kind can."""
    task, module = config["task"], family(compose.module_of(config))
    if not hasattr(module, "graph"):
        return f"{task['name']} {module.NO_GRAPH}"
    architecture = models.architecture(task["family"], config["model"]["name"])
    for node in models.nodes_at(config["mapping"], architecture.PLACES).values():
        if sa.spec(node["name"]).over != "row":
            return f"the mapping {node['name']} of {task['name']} is not over rows; docs/guides/onnx.md lists those that have a formula in ONNX"
    return None


class _Called(nn.Module):
    """A function of tensors as a module; `module` is the one that it calls."""

    def __init__(self, function: Callable[..., Any], part: nn.Module) -> None:
        super().__init__()
        self.function, self.part = function, part

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def write(model: Loaded, folder: Path) -> Path:
    """Write model.onnx to `folder`, for any number and length of inputs.

    Raises StoreError if torch cannot write the model or its mapping, or the packages onnx and onnxscript are missing.
    """
    part, function, given, outputs = model.family.graph(model)
    free = torch.export.Dim.DYNAMIC
    shapes = tuple({0: free, 1: free} if x.dtype == torch.int64 else {0: free} for x in given.values())
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about torch's internals
            how: Any = {"input_names": list(given), "output_names": outputs, "dynamic_shapes": (shapes,)}
            how |= {"dynamo": True, "verbose": False}
            program = torch.onnx.export(_Called(function, part), tuple(given.values()), **how)
            program.save(str(folder / FILE))
    except ModuleNotFoundError as error:
        raise StoreError(f"no {FILE}: the package {error.name} is missing; pip install onnx onnxscript") from error
    except RuntimeError as error:  # torch.onnx.OnnxExporterError, or an error of a mapping's solver
        cause = error.__cause__ or error
        raise StoreError(f"no {FILE}: torch cannot write this model; {str(cause).splitlines()[0]}") from error
    return folder / FILE
