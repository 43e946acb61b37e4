"""Tiny random models of every architecture of transformers, made from its own configurations by names of their fields."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

import sparse_attention as sa

PARAMETERS = 4_000_000  # at most; more: the names below do not reach the sizes of this configuration
VOCABULARY, WORDS, IMAGE, PATCH = 99, 9, 32, 8
# What a field is made, by its name; a list keeps its length. Fields not named keep their default.
SIZES: tuple[tuple[int, str], ...] = (
    (
        32,
        "hidden_size d_model n_embd embed_dim embedding_dim embedding_size hidden_dim dim projection_dim model_dim n_embed "
        "encoder_hidden_size decoder_hidden_size text_embed_dim cross_attention_dim vision_embed_dim input_hidden_size "
        "hidden_sizes encoder_embed_dim decoder_embed_dim pooler_hidden_size backbone_hidden_size bottleneck_dim "
        "fusion_hidden_size reassemble_hidden_size output_dim out_hidden_size mm_hidden_size char_hidden_size "
        "speaker_embedding_dim adapter_dim feature_size vision_hidden_size text_hidden_size query_dim hidden_size_per_layer_input "
        "proj_dim latent_dim encoder_dim decoder_dim q_lora_rank d_latents q_hidden_size audio_embed_dim entity_emb_size",
    ),
    (
        48,
        "intermediate_size encoder_ffn_dim decoder_ffn_dim ffn_dim d_ff n_inner ffn_hidden_size mlp_dim dim_feedforward "
        "intermediate_sizes encoder_intermediate_size decoder_intermediate_size hidden_mlp_dim prediction_head_intermediate_size "
        "feed_forward_dim dense_intermediate_size moe_shared_expert_intermediate_size intermediate_size_mlp ff_dim",
    ),
    (
        4,
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads "
        "num_experts n_routed_experts num_local_experts moe_num_experts num_attention_heads_per_layer num_memory_blocks index_n_heads "
        "encoder_num_attention_heads decoder_num_attention_heads vision_attention_heads text_attention_heads",
    ),
    (
        2,
        "window_size num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth depths num_key_value_heads "
        "num_decoder_layers num_encoder_layers encoder_num_hidden_layers decoder_num_hidden_layers num_experts_per_tok "
        "top_k moe_k num_blocks n_blocks moe_topk num_kv_heads n_group topk_group num_query_tokens first_k_dense_replace "
        "num_block_records num_attention_layers num_transformer_layers num_conv_layers block_repeats layers "
        "temporal_patch_size num_fusion_layers num_nextn_predict_layers conv_depth perceiver_layers text_layers vision_layers",
    ),
    (
        8,
        "head_dim d_kv num_mel_bins v_head_dim qk_nope_head_dim qk_rope_head_dim kv_channels index_head_dim attention_head_dim "
        "qk_head_dim index_topk kv_lora_rank feature_dim num_queries swa_head_dim swa_v_head_dim global_head_dim rotary_dim",
    ),
    (
        16,
        "moe_intermediate_size expert_intermediate_size sliding_window shared_expert_intermediate_size "
        "shared_intermediate_size max_source_positions conv_dim tdnn_dim num_frames_per_window attention_window",
    ),
    (
        64,
        "max_position_embeddings n_positions max_target_positions max_seq_len max_seq_length max_2d_position_embeddings",
    ),
    (IMAGE, "image_size img_size input_size crop_size"),
    (PATCH, "patch_size"),
    (VOCABULARY, "vocab_size text_vocab_size entity_vocab_size vocab_size_per_layer_input decoder_vocab_size"),
    (1, "num_codebooks num_conv_pos_embedding_groups num_labels"),
)
TINY = {name: size for size, names in SIZES for name in names.split()}

OVERRIDES: dict[str, dict[str, Any]] = {
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    **{name: {"image_size": 64, "patch_size": 4} for name in ("swin", "donut-swin", "swinv2", "maskformer-swin")},
    "time_series_transformer": {"prediction_length": 4},
    "informer": {"prediction_length": 4},
}


def architectures() -> list[str]:
    """Model types with a base class whose file uses the attention interface; found without importing the files."""
    root = Path(transformers.__file__).parent / "models"

    def uses_the_interface(model_type: str) -> bool:
        files = (root / model_type_to_module_name(model_type)).glob("modeling_*.py")
        return any("ALL_ATTENTION_FUNCTIONS" in file.read_text(encoding="utf-8") for file in files)

    return [model_type for model_type in MODEL_MAPPING_NAMES if uses_the_interface(model_type)]


def base_class(model_type: str) -> type[PreTrainedModel]:
    name = MODEL_MAPPING_NAMES[model_type]
    return getattr(transformers, name[0] if isinstance(name, (tuple, list)) else name)


def shrunk(value: Any, name: str) -> Any:
    """A field's tiny value: numbers by the table, lists of numbers at their length."""
    if name not in TINY or value is None or isinstance(value, (bool, str, dict)):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(shrunk(v, name) for v in value)
    return min(TINY[name], value) if name in ("sliding_window", "first_k_dense_replace") else TINY[name]


def tiny(kind: type[PretrainedConfig], default: PretrainedConfig | None = None) -> PretrainedConfig:
    """The configuration with small sizes; what it derives (kinds of layers, ...) it derives again."""
    default = kind() if default is None else default
    given: dict[str, Any] = {}
    for name, value in vars(default).items():
        if name in kind.sub_configs and isinstance(value, PretrainedConfig):
            given[name] = tiny(type(value), value)
        elif name.endswith("_token_id") and isinstance(value, int) and value >= VOCABULARY:
            given[name] = 3
        elif not name.startswith("_") and (small := shrunk(value, name)) is not value and small != value:
            given[name] = small
    if getattr(default, "kv_lora_rank", None):  # latent attention has no groups
        given["num_key_value_heads"] = TINY["num_attention_heads"]
    if "rope_type" in (rope := getattr(default, "rope_parameters", None) or {}):
        narrow = rope.get("partial_rotary_factor", 1.0) < 1
        given["rope_parameters"] = {**rope, "mrope_section": [1, 1, 0] if narrow else [2, 1, 1]}
    if "linear_attention" in (vars(default).get("layer_types") or ()):
        given |= {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    return kind(**{**given, **OVERRIDES.get(default.model_type, {})})


def config(model_type: str) -> PretrainedConfig:
    return tiny(CONFIG_MAPPING[model_type])


def build(model_type: str, attention: str = "eager") -> PreTrainedModel:
    """The model, in eval mode, from seed 0.

    Raises:
        ValueError: it stays large.
    """
    made = config(model_type)
    kind = base_class(model_type)
    with torch.device("meta"):
        size = sum(p.numel() for p in kind._from_config(made).parameters())
    if size > PARAMETERS:
        raise ValueError(f"stays large: {size} parameters")
    torch.manual_seed(0)
    return kind._from_config(config(model_type), attn_implementation=attention).float().eval()


def fields(made: PretrainedConfig, name: str, default: Any) -> Any:
    """A field of the configuration or of a part of it."""
    parts = [made, *(getattr(made, sub, None) for sub in made.sub_configs)]
    found = [getattr(part, name) for part in parts if getattr(part, name, None) is not None]
    return found[0] if found else default


def inputs(model: PreTrainedModel) -> list[dict[str, torch.Tensor]]:
    """Inputs that may fit, most likely first: words, pictures, sounds; two entries each."""
    made, takes = model.config, inspect.signature(model.forward).parameters
    noise = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=noise)

    words = {"input_ids": torch.randint(4, VOCABULARY - 4, (2, WORDS), generator=noise), "attention_mask": torch.ones(2, WORDS, dtype=torch.long)}  # fmt: skip
    channels, size = fields(made, "num_channels", 3), fields(made, "image_size", IMAGE)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    frames, bins = fields(made, "num_frames", 2), fields(made, "num_mel_bins", 8)
    picture = {"pixel_values": normal(2, channels, height, width)}
    film = {"pixel_values": normal(2, frames, channels, height, width)}
    films = {"pixel_values_videos": normal(2, frames, channels, height, width)}
    sound, features, rows = {"input_values": normal(2, 8000)}, {"input_features": normal(2, bins, 32)}, {"input_features": normal(2, 32, bins)}  # fmt: skip
    after = {"decoder_input_ids": words["input_ids"][:, :5]}
    found = []
    for one in (words, picture, sound, features, rows, {**words, **picture}, film, films):
        one = {k: v for k, v in one.items() if k in takes or "kwargs" in takes}
        if not one or set(one) == {"attention_mask"}:
            continue
        if "decoder_input_ids" in takes:
            found.append({**one, **after})
        found.append(one)
    main = model.main_input_name
    return sorted(found, key=lambda one: main not in one)


def tensors(output: Any) -> list[torch.Tensor]:
    """Every floating point tensor of an output, in order."""
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() and output.numel() else []
    if isinstance(output, dict):
        return [x for value in output.values() for x in tensors(value)]
    return [x for value in output for x in tensors(value)] if isinstance(output, (list, tuple)) else []


def run(model: PreTrainedModel, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(2)  # some draw masks or noise
    return tensors(model(**given))


def verdict(model_type: str, spied: list[tuple[torch.Tensor, ...]]) -> tuple[float, int] | str:
    """How far softmax of ours, with weights, is from eager, and how many attentions a sparse training step went through; or why that is not known.

    spied: to which the implementation ``spy`` (sparsemax) adds each call's queries and keys.

    Raises:
        AssertionError: another result, a gradient that is not finite or does not arrive.
    """
    try:
        model = build(model_type)
    except Exception as error:
        return f"no tiny configuration: {shortened(error)}"
    why = "no inputs for it"
    for given in inputs(model):
        try:
            with torch.no_grad():
                expected = run(model, given)
            break
        except Exception as error:
            why = f"no inputs for it: {shortened(error)}"
    else:
        return why
    if any(bool(x.isnan().any()) for x in expected):
        return "the eager implementation gives NaN"
    model.set_attn_implementation("spy")
    spied.clear()
    trained = run(model.train(), given)
    calls = [(q, k) for q, k in spied if k.shape[-2] > 1]
    if not calls:
        return "attends by code of its own, or at this size to one key alone"
    sum(x.square().mean() for x in trained if x.requires_grad).backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters()), "a gradient is not finite"
    reached = [q.grad is not None and bool(q.grad.any() & k.grad.any()) for q, k in calls]
    assert any(reached), "no gradient reaches queries and keys"
    model = build(model_type)
    errors = []
    for name, bound in (("softmax_with_weights", 1e-6), ("sa_softmax", 1e-5)):
        model.set_attn_implementation(name)
        with torch.no_grad():
            found = run(model, given)
        assert [x.shape for x in found] == [x.shape for x in expected]
        errors.append(max(float((x - y).abs().max() / y.abs().max().clamp(min=1.0)) for x, y in zip(found, expected)))
        assert errors[-1] <= bound, f"{name} is {errors[-1]:.1e} from eager"
    if "attention_mask" in given:
        given["attention_mask"][1, -3:] = 0
        model.set_attn_implementation("eager")
        with torch.no_grad():
            expected = run(model, given)
            found = run(sa.integrations.transformers.use(model, "softmax", partly=True), given)
        error = max(float((x - y).abs().max() / y.abs().max().clamp(min=1.0)) for x, y in zip(found, expected))
        assert error <= 1e-5, f"with padding softmax is {error:.1e} from eager"
    return errors[0], len(calls)


def shortened(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    text = text.replace("|", "/").replace("[", "\\[")  # neither a cell nor a link
    return text if len(text) <= 110 else text[:107] + "..."
