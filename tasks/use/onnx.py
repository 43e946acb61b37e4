"""Write a model as one ONNX file. docs/guides/predict.md lists the inputs and outputs of each kind of model."""

import copy
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sparse_attention as sa
from repro.files import StoreError
from tasks.classification.models.snli_attentive import Gru
from tasks.config import models
from tasks.data.cache import read_meta
from tasks.data.symbols import FIRST, PAD
from tasks.use.model import Loaded

FILE = "model.onnx"
REFUSED = {
    "seq2seq": "finds its output by beam search, which runs the model once per word and is not one graph",
    "fertility": "only tags words for another model",
}


def refused(config: Mapping[str, Any]) -> str | None:
    """Why a model cannot be written as ONNX (a part of a sentence); None if models of its kind can."""
    family, task = config["task"]["family"], config["task"]["name"]
    if why := REFUSED.get(family):
        return f"{task} {why}"
    architecture = models.architecture(family, config["model"]["name"])
    for node in models.nodes_at(config["mapping"], architecture.PLACES).values():
        if sa.spec(node["name"]).over != "row":
            return f"the mapping {node['name']} of {task} is not over rows; docs/guides/onnx.md lists those that have a formula in ONNX"
    return None


class _Gru(nn.Module):
    """`Gru` as ONNX's operator of that name; torch.onnx would write its loop for the words of the example only.

    ONNX has h' = (1 - z) h~ + z h, so its z is one minus ours: the weights of that gate change their sign.
    """

    def __init__(self, gru: Gru) -> None:
        super().__init__()

        def joined(gates: Tensor, candidate: Tensor) -> Tensor:
            update, reset = gates.chunk(2)
            return torch.cat((-update, reset, candidate))[None]

        bias = joined(gru.gates.bias, gru.candidate.bias)
        self.weights = nn.Parameter(joined(gru.gates.weight, gru.candidate.weight))
        self.state_weights = nn.Parameter(joined(gru.state_gates.weight, gru.state_candidate.weight))
        self.bias = nn.Parameter(torch.cat((bias, torch.zeros_like(bias)), 1))

    def forward(self, x: Tensor, mask: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        (rows, words), size = x.shape[:2], h.shape[1]
        inputs = (x.transpose(0, 1), self.weights, self.state_weights, self.bias, mask.sum(1).int(), h[None])
        given = {"dtypes": (x.dtype, x.dtype), "shapes": ((words, 1, rows, size), (1, rows, size))}
        states, last = torch.onnx.ops.symbolic_multi_out("GRU", inputs, {"hidden_size": size}, **given)
        return states.squeeze(1).transpose(0, 1), torch.where(mask.any(1, keepdim=True), last.squeeze(0), h)


class _Called(nn.Module):
    """A function of tensors as a module; `module` is the one that it calls."""

    def __init__(self, function: Callable[..., Any], part: nn.Module) -> None:
        super().__init__()
        self.function, self.part = function, part

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def _graph(model: Loaded) -> tuple[nn.Module, dict[str, Tensor], list[str]]:
    """The module to write, an example of each input by its name, and the names of the outputs."""
    if model.name == "multilabel":
        output, weights = model.model.output, torch.from_numpy(model.model.model.weights.copy())
        mapping, threshold = sa.make(output.mapping, **output.params), model.model.threshold if output.dense else 0.0

        def labels(features: Tensor) -> tuple[Tensor, Tensor]:  # as `tasks.multilabel.fitted.predict`
            p = mapping(weights[0] + features @ weights[1:])
            return p, p > threshold

        example = torch.ones(2, model.encoding.features, dtype=torch.float64)
        return _Called(labels, mapping), {"features": example}, ["probabilities", "labels"]
    network = copy.deepcopy(model.model).cpu().eval()
    for name, part in list(network.named_children()):
        if isinstance(part, Gru):
            setattr(network, name, _Gru(part))
    texts = read_meta(model.encoding.folder)["fields"] if model.name == "classification" else ["tokens"]
    given = {name: torch.full((2, 5 + i), FIRST) for i, name in enumerate(texts)}
    for text in given.values():
        text[1, -1] = PAD
    if model.name == "classification":

        def classified(*ids):
            return network(list(ids), [text.ne(PAD).sum(1) for text in ids])[0].float().log_softmax(-1)

        return _Called(classified, network), given, ["log_probs"]
    spec = model.encoding.image_spec
    pixels, regions = (*spec.grid, 3), (spec.grid[0] * spec.grid[1], spec.channels)
    given["images"] = torch.zeros(2, *pixels, dtype=torch.uint8) if spec.kind == "pixels" else torch.zeros(2, *regions)

    def answered(tokens, images):
        return network(tokens, images, torch.arange(tokens.shape[0]))[0].float().sigmoid()

    return _Called(answered, network), given, ["probabilities"]


def write(model: Loaded, folder: Path) -> Path:
    """Write model.onnx to `folder`, for any number and length of inputs.

    Raises StoreError if torch cannot write the model or its mapping, or the packages onnx and onnxscript are missing.
    """
    module, given, outputs = _graph(model)
    free = torch.export.Dim.DYNAMIC
    shapes = tuple({0: free, 1: free} if x.dtype == torch.int64 else {0: free} for x in given.values())
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about torch's internals
            names = {"input_names": list(given), "output_names": outputs, "dynamic_shapes": (shapes,)}
            program = torch.onnx.export(module, tuple(given.values()), dynamo=True, verbose=False, **names)
            program.save(str(folder / FILE))
    except ModuleNotFoundError as error:
        raise StoreError(f"no {FILE}: the package {error.name} is missing; pip install onnx onnxscript") from error
    except RuntimeError as error:  # torch.onnx.OnnxExporterError, or an error of a mapping's solver
        cause = error.__cause__ or error
        raise StoreError(f"no {FILE}: torch cannot write this model; {str(cause).splitlines()[0]}") from error
    return folder / FILE
