"""Ten architectures of transformers in depth: padding, caches, windows, biases, sinks, weights; what `register` refuses."""

import importlib
import sys

import pytest
import torch
from tiny_models import integration, tiny

import sparse_attention as sa

tf = pytest.importorskip("transformers")
DECODERS = {
    "gpt2": ("GPT2LMHeadModel", {}),
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", {"sliding_window": 4}),
    "gemma2": ("Gemma2ForCausalLM", {"sliding_window": 4, "attn_logit_softcapping": 5.0}),
    "gpt_oss": ("GptOssForCausalLM", {"sliding_window": 4, "num_experts_per_tok": 1}),
}
ENCODERS = {"bert": ("BertModel", {}), "modernbert": ("ModernBertModel", {"local_attention": 4})}
BOTH = {
    "t5": ("T5ForConditionalGeneration", {"decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", {}),
    "whisper": ("WhisperForConditionalGeneration", {}),
}
ALL = {**DECODERS, **ENCODERS, **BOTH}
SPARSE = ("sparsemax", "fusedmax")
# the name of the argument that takes a cache
CACHE = "cache" if tuple(map(int, tf.__version__.split(".")[:2])) >= (5, 24) else "past_key_values"
SIX_WORDS = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
WORDS = torch.randint(4, 60, (2, 9), generator=torch.Generator().manual_seed(0))


def plain(name: str):
    """A small model in eval mode."""
    kind = getattr(tf, ALL[name][0])
    return kind(tiny(kind.config_class, **ALL[name][1])).eval()


def made(name: str, mapping: str = "sparsemax", **given):
    """A model whose scores are large enough for zeros."""
    torch.manual_seed(1)
    model = plain(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    return integration().use(model.eval(), mapping, **given)


def inputs(name: str, hidden: int = 0, left: bool = False) -> dict[str, torch.Tensor]:
    """The second entry has ``hidden`` words of padding; the first none."""
    if name == "whisper":
        return {"input_features": torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(1))}
    mask = torch.ones(2, 9, dtype=torch.long)
    if hidden:
        mask[1, slice(hidden) if left else slice(-hidden, None)] = 0
    return {"input_ids": WORDS, "attention_mask": mask}


def out(model, name: str, given: dict[str, torch.Tensor], **more):
    if name in BOTH:
        more["decoder_input_ids"] = WORDS[-len(next(iter(given.values()))) :, :4]
    result = model(**given, **more)
    return result if more.get("output_attentions") else result[0]


@pytest.mark.parametrize("mapping", SPARSE)
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", [n for n in ALL if n != "whisper"])
def test_padding_is_invisible(name, left, mapping):
    if left and name == "bart":
        pytest.skip("its positions are counted from the padding on, whatever attends")
    model, given = made(name, mapping), inputs(name, 3, left)
    keep = given["attention_mask"][1].bool()
    alone = {"input_ids": WORDS[1:][:, keep]}
    if left and name in ("gpt2", *ENCODERS):  # positions are counted from the first word
        given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
        alone["position_ids"] = torch.arange(6)[None]
    with torch.no_grad():
        padded, whole = out(model, name, given)[1], out(model, name, alone)[0]
    padded = padded if name in BOTH else padded[keep]
    assert torch.allclose(padded, whole, atol=1e-4 * float(whole.abs().max()))
    if name not in BOTH:
        return
    given["input_ids"] = WORDS.masked_fill(~given["attention_mask"].bool(), 7)
    with torch.no_grad():
        assert torch.equal(out(model, name, given)[1], padded)


@pytest.mark.parametrize("mapping", SPARSE)
@pytest.mark.parametrize("name", [*DECODERS, *BOTH])
def test_cached_generation_is_the_uncached(name, mapping):
    model, given = made(name, mapping), inputs(name, 3, left=True)
    asked = SIX_WORDS | {"output_logits": True, "return_dict_in_generate": True}
    with_cache, without = (model.generate(**given, **asked, use_cache=cache) for cache in (True, False))
    assert torch.equal(with_cache.sequences, without.sequences)
    if name in ("gpt2", "gemma2"):
        static = model.generate(**given, **asked, cache_implementation="static", disable_compile=True)
        assert torch.equal(static.sequences, without.sequences)
    for a, b in zip(with_cache.logits, without.logits):
        assert torch.allclose(a, b, atol=1e-4 * float(b.abs().max()))


def test_a_long_cache_is_read_at_the_support(monkeypatch):
    monkeypatch.setattr(integration(), "LONG", 1)
    reads, inner = [], integration().at_support
    monkeypatch.setattr(integration(), "at_support", lambda p, v: reads.append(p) or inner(p, v))
    test_cached_generation_is_the_uncached("llama", "sparsemax")
    assert len(reads) == 2 * 5 and max(float((p == 0).float().mean()) for p in reads) > 0.5


HELD = [*((name, "sparsemax") for name in ("llama", "gpt2", "mistral", "gpt_oss")), ("llama", "fusedmax")]


@pytest.mark.parametrize("hidden", [0, 3], ids=["whole", "left padded"])
@pytest.mark.parametrize(("name", "mapping"), HELD)
def test_a_held_cache_changes_nothing(name, mapping, hidden):
    """Windows (mistral, gpt_oss), learned sinks (gpt_oss), mappings without a kernel; beams reorder the cache."""
    model, given = made(name, mapping), inputs(name, hidden, left=True)
    for beams in (1, 3):
        asked = SIX_WORDS | {"num_beams": beams}
        cache = integration().cache(model)
        held = model.generate(**given, **asked, **{CACHE: cache})
        assert torch.equal(held, model.generate(**given, **asked))
    kinds = {type(layer).__name__ for layer in cache.layers}
    slides = {"DynamicSlidingWindowLayer"}
    assert kinds == {"mistral": slides, "gpt_oss": {"Held", *slides}}.get(name, {"Held"})


def test_a_held_cache_is_what_steps_read(monkeypatch):
    model, asked, read = made("llama"), [], sa.KeyCache.attend
    monkeypatch.setattr(sa.KeyCache, "attend", lambda held, q, **given: asked.append(given) or read(held, q, **given))
    cache = integration().cache(model)
    with torch.no_grad():
        whole = model(WORDS).logits
        model(WORDS[:, :7], **{CACHE: cache})
        model(WORDS[:, 7:], **{CACHE: cache})  # two queries at once
        cache.crop(-2)
        assert not asked and cache.get_seq_length() == 7
        last = [model(WORDS[:, t : t + 1], **{CACHE: cache}).logits[:, 0] for t in (7, 8)]
        torch.testing.assert_close(torch.stack(last, 1), whole[:, 7:], atol=1e-4, rtol=1e-4)
        assert asked == [{"lengths": None}] * 4  # two layers, two steps
        cache.batch_select_indices(torch.tensor([False, True]))
        model.set_attn_implementation("eager")  # whoever else attends finds keys and values as ever
        softmax = model(WORDS[1:, :1], **{CACHE: cache}).logits
    assert len(asked) == 4 and softmax.isfinite().all()
    with pytest.raises(ValueError, match="attends by 'eager'"):
        integration().cache(model)
    with pytest.raises(ValueError, match="not support gradients"):
        model(WORDS[1:], **{CACHE: cache})
    with pytest.raises(ValueError, match="has an encoder"):
        integration().cache(made("t5"))


@pytest.mark.parametrize("name", list(ALL))
def test_weights_are_given_when_asked_for(name):
    model, given = made(name, "sparsemax"), inputs(name, 3)
    with torch.no_grad():
        asked, plain = out(model, name, given, output_attentions=True), out(model, name, given)
    keys = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    found = [p for key in keys for p in getattr(asked, key, None) or ()]
    assert torch.allclose(asked[0], plain, atol=1e-4 * float(plain.abs().max()))  # the fused way and the composed
    assert len(found) == (6 if name in BOTH else 2)
    for p in found:
        sums = p.sum(-1)
        below = name == "gpt_oss"  # a sink takes its share
        assert (sums < 1 + 1e-5).all() and (below or ((sums - 1).abs() < 1e-5).logical_or(sums == 0).all())
    if name in ENCODERS and name != "modernbert":
        assert (found[0][1, :, :, -3:] == 0).all()
    assert max(float((p[0] == 0).float().mean()) for p in found) > 0.1


def test_the_fused_kernel_is_told_causality_and_lengths(monkeypatch):
    seen, inner = [], integration().sparse_attention

    def spy(q, k, v, mapping, mask=None, causal=False, lengths=None, **rest):
        seen.append((mask is None, causal, None if lengths is None else lengths.tolist()))
        return inner(q, k, v, mapping, mask, causal, lengths, **rest)

    monkeypatch.setattr(integration(), "sparse_attention", spy)
    with torch.no_grad():
        made("llama")(input_ids=WORDS)
        made("llama")(**inputs("llama", 3))
        made("llama")(**inputs("llama", 3, left=True))
        made("bert")(**inputs("bert", 3))
        made("bert")(input_ids=WORDS)
    assert [one[:2] for one in seen[::2]] == [(True, True)] * 2 + [(False, False)] + [(True, False)] * 2
    assert [lengths for *_, lengths in seen[::2]] == [None, [9, 6], None, [9, 6], None]


def test_a_mask_that_was_written_to_is_read():
    mask = integration().mask(batch_size=1, q_length=4, kv_length=4)
    q = k = v = torch.randn(1, 1, 4, 8)
    module = torch.nn.Identity()
    attend = tf.AttentionInterface._global_mapping[integration().register("sparsemax")]
    plain, _ = attend(module, q, k, v, mask)
    assert torch.allclose(plain, sa.sparse_attention(q, k, v, causal=True).transpose(1, 2), atol=1e-6)
    mask[:] = True
    assert torch.allclose(attend(module, q, k, v, mask)[0], sa.sparse_attention(q, k, v).transpose(1, 2), atol=1e-6)


def test_added_masks_are_split_from_biases():
    mask = torch.tensor([[0.0, -3.0, -1e4, torch.finfo(torch.float32).min, -torch.inf]])
    keep, bias = sa.integrations.separate(mask, -5000)
    assert keep.tolist() == [[True, True, False, False, False]] and bias.tolist() == [[0, -3, 0, 0, 0]]
    attend = tf.AttentionInterface._global_mapping[integration().register("fusedmax", lam=0.2, name="mine")]
    q, k, v = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 4)
    _, weights = attend(torch.nn.Identity(), q, k, v, mask.expand(1, 1, 3, 5), output_attentions=True)
    scores = q @ k.mT / 8**0.5 + bias
    assert torch.allclose(weights, sa.fusedmax(scores, lam=0.2, mask=keep.expand_as(scores)), atol=1e-6)
    sinks = torch.tensor([0.5, 9.0])
    _, weights = attend(torch.nn.Identity(), q, k, v, None, s_aux=sinks)
    extended = torch.cat([q @ k.mT / 8**0.5, sinks.view(1, 2, 1, 1).expand(1, 2, 3, 1)], -1)
    assert torch.allclose(weights, sa.fusedmax(extended, lam=0.2)[..., :-1], atol=1e-6) and (weights[:, 1] == 0).all()


@pytest.mark.parametrize("name", ["llama", pytest.param("bert", marks=pytest.mark.slow)])
def test_one_graph_under_compile(name):
    model, given = made(name), inputs(name, 3)
    (model.encoder.layer if name == "bert" else model.model.layers).pop(1)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(**given)[0]
        assert torch.allclose(compiled, model(**given)[0], atol=1e-5)


def test_what_is_refused():
    register = integration().register
    assert register("entmax", alpha=1.3) == register("entmax", alpha=1.3) == "sa_entmax"
    assert register("entmax", name="sharper", alpha=1.7) == "sharper"
    for name, given, says in (
        ("entmax", {"alpha": 1.7}, r"'sa_entmax' is already .* entmax\(alpha=1.3\).*alpha=1.7\) another name"),
        ("entmax", {"name": "learns", "alpha": "learned"}, "cannot learn; give a number"),
        ("constrained_softmax", {}, "constrained_softmax needs bounds at each call"),
        ("sparsemax", {"name": "my_sdpa"}, "a word reserved by transformers"),
    ):
        with pytest.raises(ValueError, match=says):
            register(name, **given)
    attend = tf.AttentionInterface._global_mapping["sharper"]
    q = torch.randn(1, 1, 2, 4)
    with pytest.raises(ValueError, match=r"passes cache=.*use attn_implementation='eager'"):
        attend(torch.nn.Identity(), q, q, q, None, cache=object())


def test_torch_attention_within_a_model_is_replaced_first():
    model = tf.SiglipVisionModel(tiny(tf.SiglipVisionConfig, image_size=16)).eval()
    with pytest.raises(ValueError, match=r"call sa.nn.replace\(model, 'sparsemax'\) first"):
        integration().use(model, "sparsemax")
    assert sa.nn.replace(model, "sparsemax") == 1
    assert integration().use(model, "sparsemax")(torch.randn(1, 3, 16, 16)).pooler_output.isfinite().all()


def test_without_transformers_a_sentence_says_what_to_install(monkeypatch):
    name = integration().__name__
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"needs transformers.*pip install 'transformers>=5\.23'"):
        importlib.import_module(name)


def test_from_pretrained_initialises_what_the_checkpoint_lacks(tmp_path):
    class Config(tf.PretrainedConfig):
        model_type = "learned_alpha"

    class Model(tf.PreTrainedModel):
        config_class = Config

        def __init__(self, config, learns=True):
            super().__init__(config)
            self.linear = torch.nn.Linear(4, 4)
            if learns:
                self.one, self.each, self.own, self.ruled = (sa.make("entmax", alpha="learned") for _ in range(4))
                self.each = self.each.spread(3, 1)
                self.own.alpha_logit = torch.nn.Parameter(torch.full((1,), 1.3))
                self.attend = sa.nn.MultiheadAttention(4, 2, mapping="entmax", alpha="learned")
            self.post_init()

        def _init_weights(self, module):
            super()._init_weights(module)
            if module is getattr(self, "ruled", None):
                module.alpha_logit.data.fill_(0.4)

    fresh = Model(Config())  # has what the constructor and the model's own rule set
    assert fresh.own.alpha_logit.item() == pytest.approx(1.3) and fresh.ruled.alpha_logit.item() == pytest.approx(0.4)

    Model(Config(), learns=False).save_pretrained(tmp_path / "plain")
    model = Model.from_pretrained(tmp_path / "plain")
    assert model.one.params["alpha"].item() == 1.5 and model.each.alpha_logit.unique().numel() == 3
    assert model.ruled.alpha_logit.item() == pytest.approx(0.4)
    assert model.attend.mapping.alpha_logit.unique().numel() == 2 and (model.attend.in_proj_bias == 0).all()
    with torch.no_grad():
        model.one.alpha_logit.fill_(0.7)
    model.save_pretrained(tmp_path / "trained")
    again = Model.from_pretrained(tmp_path / "trained")
    assert again.one.alpha_logit.item() == pytest.approx(0.7)
    assert all(torch.equal(x, y) for x, y in zip(again.parameters(), model.parameters(), strict=True))
