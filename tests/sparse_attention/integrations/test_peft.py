"""PEFT's adapters on replaced models: before and after `sa.nn.replace`, merged, saved, loaded."""

import copy

import pytest
import torch
from torch import nn

import sparse_attention as sa

peft = pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")
X = 3 * torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(3))
PAD = torch.arange(12) >= torch.tensor([[12], [8]])


class Net(nn.Module):
    """Two layers of self-attention, in which sparse mappings have zeros."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        return self.encoder(x, src_key_padding_mask=PAD)


def config(targets, **given):
    return peft.LoraConfig(target_modules=targets, r=2, init_lora_weights=False, **given)


def adapted(model, targets):
    torch.manual_seed(1)
    return peft.get_peft_model(model, config(targets))


def replaced(model, mapping="sparsemax", **params):
    sa.nn.replace(model, mapping, **params)
    return model


def made(order, targets, mapping="sparsemax"):
    if order == "replace, adapt":
        return adapted(replaced(Net(), mapping), targets)
    return replaced(adapted(Net(), targets), mapping)


def outputs(model):
    """Of the positions that are not hidden, in training and in eval mode, which agree."""
    trained = model.train()(X)[~PAD]
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(X)[~PAD], trained, atol=1e-4, rtol=1e-4)
    return trained.detach()


def same(model, expected):
    torch.testing.assert_close(outputs(model), expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("order", ["replace, adapt", "adapt, replace"])
@pytest.mark.parametrize("targets", [["self_attn"], ["self_attn", "linear1"], ["out_proj"], "all-linear"], ids=str)
def test_adapters(targets, order, tmp_path):
    model = made(order, targets)
    expected, plain = outputs(model), outputs(replaced(Net()))
    assert (expected - plain).abs().max() > 0.1
    if "self_attn" in targets:  # torch ignores LoRA on out_proj alone; our module counts it
        same(made(order, targets, "softmax"), adapted(Net(), targets).train()(X)[~PAD].detach())

    merged = copy.deepcopy(model)
    for safe in (False, True):
        merged.merge_adapter(safe_merge=safe)
        same(merged, expected)
        merged.unmerge_adapter()
        same(merged, expected)
    whole = copy.deepcopy(model).merge_and_unload()
    same(whole, expected)
    kinds = [type(part) for part in whole.modules() if isinstance(part, nn.MultiheadAttention)]
    assert kinds == [sa.nn.MultiheadAttention] * 2
    same(copy.deepcopy(model).unload(), plain)
    with model.disable_adapter():
        same(model, plain)

    model.save_pretrained(tmp_path)
    same(peft.PeftModel.from_pretrained(replaced(Net()), tmp_path), expected)
    same(peft.PeftModel.from_pretrained(replaced(Net()), tmp_path, low_cpu_mem_usage=True), expected)
    same(replaced(peft.PeftModel.from_pretrained(Net(), tmp_path)), expected)

    model.train()(X).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad)


def test_a_learned_mapping_is_saved_or_refused(tmp_path):
    def base(seed=4):
        model = Net()
        torch.manual_seed(seed)
        return replaced(model, "entmax", alpha="learned")

    for targets in (["self_attn"], ["linear1"]):
        with pytest.raises(ValueError, match=r"PEFT .* would not save .* first, then get_peft_model.*modules_to_save"):
            replaced(adapted(Net(), targets), "entmax", alpha="learned")
    model = peft.get_peft_model(base(), config(["linear1"], modules_to_save=["mapping"]))
    own = [p for name, p in model.named_parameters() if "alpha_logit" in name and p.requires_grad]
    assert len(own) == 2
    with torch.no_grad():
        for p in own:
            p += 1.0
    expected = outputs(model)
    model.save_pretrained(tmp_path)
    same(peft.PeftModel.from_pretrained(base(seed=5), tmp_path), expected)
    same(copy.deepcopy(model).merge_and_unload(), expected)
