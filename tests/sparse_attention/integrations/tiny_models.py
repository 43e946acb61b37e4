"""Our integration with transformers, and configurations of its models in small sizes."""

from typing import Any

import pytest

import sparse_attention as sa

transformers = pytest.importorskip("transformers")
VOCABULARY = 99
SIZES = {  # what a field is made, by its name; a list keeps its length, and fields not named keep their default
    1: "num_conv_pos_embedding_groups",
    2: "window_size num_hidden_layers n_layer n_layers num_layers num_decoder_layers encoder_layers decoder_layers depth "
    "depths num_key_value_heads num_experts_per_tok moe_k num_blocks n_group topk_group",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_experts "
    "n_routed_experts num_local_experts index_n_heads",
    8: "head_dim num_mel_bins v_head_dim qk_nope_head_dim qk_rope_head_dim index_head_dim index_topk qk_head_dim d_kv "
    "kv_lora_rank num_queries patch_size",
    16: "moe_intermediate_size sliding_window conv_dim max_source_positions",
    32: "hidden_size d_model n_embd embed_dim dim projection_dim decoder_hidden_size out_hidden_size text_hidden_size "
    "q_lora_rank image_size",
    48: "intermediate_size encoder_ffn_dim decoder_ffn_dim ffn_dim d_ff",
    64: "max_position_embeddings",
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
}
TINY = {name: size for size, names in SIZES.items() for name in names.split()}
OVERRIDES = {"swin": {"image_size": 64, "patch_size": 4}, "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1}}


def integration():
    """The module, whose import takes seconds: not before a test asks for it."""
    return sa.integrations.transformers


def shrunk(value: Any, name: str) -> Any:
    """A field's tiny value: numbers by the table, lists of numbers at their length."""
    if name not in TINY or value is None or isinstance(value, (bool, str, dict)):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(shrunk(v, name) for v in value)
    return min(TINY[name], value) if name == "sliding_window" else TINY[name]


def tiny(kind: Any, default: Any = None, **own: Any) -> Any:
    """The configuration with small sizes and fields of its ``own``; what it derives (kinds of layers, ...) it derives again."""
    default = kind() if default is None else default
    given: dict[str, Any] = {}
    for name, value in vars(default).items():
        if name in kind.sub_configs and isinstance(value, transformers.PretrainedConfig):
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
    return kind(**{**given, **OVERRIDES.get(default.model_type, {}), **own})
