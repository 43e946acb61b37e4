"""Small models and batches of the encoder-decoder, and a little data set."""

import pytest
import torch

import sparse_attention as sa
from repro.options import read
from tasks.data.symbols import FIRST, PAD
from tasks.seq2seq.models import lstm

WORDS = 20


@pytest.fixture(scope="session")
def build():
    """`build("fusedmax", {"lam": .1}, layers=2)`: a small model in evaluation mode, in double precision."""

    def build(mapping="softmax", params=None, seed: int = 1, words: int = WORDS, of=lstm, **options) -> lstm.Model:
        module = sa.make(mapping, **(params or {})) if isinstance(mapping, str) else mapping
        sizes = {"embed_dim": 6, "hidden_dim": 8, "layers": 2, "init_range": 0.7}
        torch.manual_seed(seed)
        made = read(of.Options, sizes | options, "model")
        return of.Model(made, words + FIRST, words + FIRST, {"cross": module}).double().eval()

    return build


@pytest.fixture(scope="session")
def assert_search_sees_training():
    """A model's steps, with rows reordered as beams are, give the logits and attention of teacher forcing."""

    @torch.no_grad()
    def check(model, inputs, **more) -> None:
        logits, attention = model(**inputs, **more)
        assert attention.shape[-1] == inputs["src_tokens"].size(1)
        memory = model.encode(inputs["src_tokens"], inputs["src_lengths"], **more)
        state, now, order = model.start(memory), torch.arange(5), torch.tensor([3, 0, 4, 1, 1])
        for t in range(logits.size(1)):
            assert all(len(x) == 5 for x in (*memory.values(), *state.values()))
            step, weights, state = model.step(inputs["prev_output_tokens"][now, t], memory, state)
            torch.testing.assert_close(step, logits[now, t])
            torch.testing.assert_close(weights, attention[now, t])
            memory, state = ({k: v[order] for k, v in tensors.items()} for tensors in (memory, state))
            now = now[order]

    return check


@pytest.fixture(scope="session")
def assert_alone_as_in_a_batch():
    """A sentence alone gives the same logits and attention as in a padded batch, and padding gets no attention."""

    def check(model, inputs, target) -> None:
        logits, attention = model(**inputs)
        for i, length in enumerate(inputs["src_lengths"].tolist()):
            steps = int(target[i].ne(PAD).sum())
            tokens, before = inputs["src_tokens"][i : i + 1, :length], inputs["prev_output_tokens"][i : i + 1, :steps]
            one, own = model(tokens, inputs["src_lengths"][i : i + 1], before)
            torch.testing.assert_close(one[0], logits[i, :steps])
            torch.testing.assert_close(own[0], attention[i, :steps, :length])
            assert attention[i, :, length:].eq(0).all()

    return check
