"""Tiny random models of transformers' architectures: softmax through the interface equals eager attention, a sparse training
step reaches queries and keys, and after `use` no attention computes softmax. The slow test tries every architecture."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCABULARY, integration, tiny
from torch.overrides import TorchFunctionMode

transformers = pytest.importorskip("transformers")
auto = transformers.models.auto
FAST = (  # of every kind: decoders, windows, experts, linear attention, encoders, pictures, sounds, several parts
    "bailing_hybrid bart beit bert clip deepseek_v3 dinov2 gemma3_text gpt_neox hubert jamba llama minimax mistral mixtral "
    "modernbert olmo_hybrid qwen3_next roberta swin t5 vit vivit wav2vec2 whisper"
)
REFUSED = {
    "aimv2": "Aimv2AttentionPoolingHead",
    "bigbird_pegasus": "BigBirdPegasusSelfAttention of .* attends by its own code",
    "data2vec-vision": "Data2VecVisionModel attends by its own code",
    "git": "GitSelfAttention of .* attends by its own code",
}
OTHERS = re.compile("Router|Gating|HyperConnection|MatchAssignment|InterestPoint")  # compute softmax and do not attend
PARAMETERS = 4_000_000  # at most; more: the names below do not reach the sizes of this configuration
WORDS, IMAGE = 9, 32


def build(model_type: str) -> Any:
    """The model, with eager attention, in eval mode, from seed 0."""
    name = auto.modeling_auto.MODEL_MAPPING_NAMES[model_type]
    kind = getattr(transformers, name[0] if isinstance(name, (tuple, list)) else name)
    config = auto.configuration_auto.CONFIG_MAPPING[model_type]
    with torch.device("meta"):
        size = sum(p.numel() for p in kind._from_config(tiny(config)).parameters())
    assert size <= PARAMETERS, f"stays large: {size} parameters"
    torch.manual_seed(0)
    return kind._from_config(tiny(config), attn_implementation="eager").float().eval()


def inputs(model: Any) -> list[dict[str, torch.Tensor]]:
    """Inputs that may fit, most likely first: words, pictures, sounds; two entries each, the second padded."""
    takes, noise = inspect.signature(model.forward).parameters, torch.Generator().manual_seed(1)
    parts = [model.config, *(getattr(model.config, sub, None) for sub in model.config.sub_configs)]

    def field(name: str, default: Any) -> Any:
        return next((x for part in parts if (x := getattr(part, name, None)) is not None), default)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise)

    size, frames, bins = field("image_size", IMAGE), field("num_frames", 2), field("num_mel_bins", 8)
    picture = (field("num_channels", 3), *((size, size) if isinstance(size, int) else tuple(size)[-2:]))
    ids = torch.randint(4, VOCABULARY - 4, (2, WORDS), generator=noise)
    words = {"input_ids": ids, "attention_mask": torch.arange(WORDS) < torch.tensor([[WORDS], [WORDS - 3]])}
    words["attention_mask"] = words["attention_mask"].long()
    found = []
    for one in (
        words,
        {"pixel_values": normal(2, *picture)},
        {"input_values": normal(2, 8000)},
        {"input_features": normal(2, bins, 32)},
        {"input_features": normal(2, 32, bins)},
        {**words, "pixel_values": normal(2, *picture)},
        {"pixel_values": normal(2, frames, *picture)},
        {"pixel_values_videos": normal(2, frames, *picture)},
    ):
        one = {k: v for k, v in one.items() if k in takes or "kwargs" in takes}
        if one and set(one) != {"attention_mask"}:
            found += [{**one, "decoder_input_ids": ids[:, :5]}] if "decoder_input_ids" in takes else []
            found.append(one)
    return sorted(found, key=lambda one: model.main_input_name not in one)


def tensors(output: Any) -> list[torch.Tensor]:
    """Every floating point tensor of an output, in order."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() and output.numel() else []
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return [x for value in parts for x in tensors(value)]


def run(model: Any, given: dict[str, torch.Tensor], grad: bool = False) -> list[torch.Tensor]:
    torch.manual_seed(2)  # some draw masks or noise
    with torch.set_grad_enabled(grad):
        return tensors(model(**given))


def tried(model_type: str) -> tuple[Any, dict[str, torch.Tensor], list[torch.Tensor]]:
    """An architecture's tiny model, inputs for it, and its outputs with eager attention; or an error."""
    model = build(model_type)
    why: Exception = TypeError("no inputs")
    for given in inputs(model):
        try:
            return model, given, run(model, given)
        except Exception as error:
            why = error
    raise why


class Softmax(TorchFunctionMode):
    """Modules that compute softmax or call torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.modules: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("softmax", "log_softmax", "scaled_dot_product_attention"):
            within = (frame.frame.f_locals.get("self") for frame in inspect.stack(0))
            self.modules.add(next(type(x).__name__ for x in within if isinstance(x, torch.nn.Module)))
        return function(*args, **(kwargs or {}))


def verdict(model_type: str, monkeypatch: Any) -> str:
    """``passes``, or why the architecture cannot be tried, or how `use` refuses it.

    Raises:
        AssertionError: another result, softmax after `use`, a gradient that is not finite or does not arrive.
    """
    try:
        model, given, expected = tried(model_type)
    except Exception as error:
        return f"not tried: {error!r}"
    if any(bool(x.isnan().any()) for x in expected):
        return "not tried: eager attention gives NaN"
    calls, inner = [], integration().attention

    def spy(mapping: Any, weights: Any, below: Any, module: Any, query: Any, key: Any, *rest: Any, **more: Any) -> Any:
        for x in (query, key):
            if x.requires_grad:
                x.retain_grad()
        calls.extend([(query, key)] if key.shape[-2] > 1 else [])
        return inner(mapping, weights, below, module, query, key, *rest, **more)

    try:
        for name, weights in (("with_weights", True), ("fused", False)):
            found = run(integration().use(model, "softmax", name=name, weights=weights), given)
            assert [x.shape for x in found] == [x.shape for x in expected]
            error = max(float((x - y).abs().max() / y.abs().max().clamp(min=1.0)) for x, y in zip(found, expected))
            assert error <= 1e-5, f"{name}: {error:.1e} from eager"
        with monkeypatch.context() as patch, Softmax() as softmax:
            patch.setattr(integration(), "attention", spy)
            trained = run(integration().use(model.train(), "sparsemax", name="spied"), given, grad=True)
    except ValueError as error:
        return f"refused: {error}"
    own = {name for name in softmax.modules if not OTHERS.search(name)}
    assert not own, f"{own} computes softmax"
    if not calls:
        return "not tried: attends at this size to one key alone"
    sum(x.square().mean() for x in trained if x.requires_grad).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters()), "a gradient is not finite"
    reached = [q.grad is not None and bool(q.grad.any() & k.grad.any()) for q, k in calls]
    assert any(reached), "no gradient reaches queries and keys"
    return "passes"


@pytest.mark.parametrize("name", FAST.split())
def test_softmax_is_eager_and_sparsemax_trains(name, monkeypatch):
    assert verdict(name, monkeypatch) == "passes"


@pytest.mark.parametrize("name", REFUSED)
def test_no_attention_computes_softmax_unnoticed(name, monkeypatch):
    assert re.search(REFUSED[name], verdict(name, monkeypatch))


@pytest.mark.slow
def test_every_architecture(monkeypatch):
    root, found = Path(transformers.__file__).parent / "models", {}
    for name in auto.modeling_auto.MODEL_MAPPING_NAMES:
        files = (root / auto.configuration_auto.model_type_to_module_name(name)).glob("modeling_*.py")
        if any("ALL_ATTENTION_FUNCTIONS" in file.read_text(encoding="utf-8") for file in files):
            try:
                found[name] = verdict(name, monkeypatch)
            except AssertionError as error:
                found[name] = f"fails: {error}"
            print(name, " ".join(found[name].split())[:200])
    assert not [name for name, told in found.items() if told.startswith("fails")]
    assert list(found.values()).count("passes") >= 240  # 253 with transformers 5.23.0
