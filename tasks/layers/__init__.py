"""Torch layers shared by several families: word vectors, LSTMs, helpers for loss precision and attention densities."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sparse_attention.mappings.continuous import BetaGaussian, document_positions
from tasks.data.symbols import PAD

HALF = (torch.float16, torch.bfloat16)


class WordVectors(nn.Module):
    """Looks up word vectors: token ids [...] -> [..., dim].

    Pretrained vectors are fixed or trained further; all other vectors are initialised from U(-r, r) and trained. The
    vector of padding is zero. If there are pretrained vectors, they determine `dim`. Fixed vectors are stored in a
    buffer, so no optimiser and no weight decay changes them.

    Args:
        size: number of ids.
        dim: size of a vector; used only if no vectors are pretrained.
        init_range: r.
        vectors, rows: pretrained vectors [found, dim] float32 and their ids [found].
        fixed: do not train the pretrained vectors.
    """

    def __init__(
        self, size: int, dim: int, init_range: float, vectors: np.ndarray | None = None, rows: np.ndarray | None = None,
        fixed: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dim = dim if vectors is None else vectors.shape[1]
        self.register_buffer("pretrained", None)
        count = size
        if vectors is not None and fixed:
            # Trained words use the first rows of the table. All pretrained words share its unused last row; their
            # vectors come from `pretrained`.
            place = torch.arange(size)
            found = torch.as_tensor(rows)
            own = torch.ones(size, dtype=torch.bool).index_fill_(0, found, False)
            count = int(own.sum()) + 1
            place[own] = torch.arange(count - 1)
            place[found] = count - 1
            slot = torch.zeros(size, dtype=torch.long).index_copy_(0, found, torch.arange(1, len(found) + 1))
            self.register_buffer("place", place, persistent=False)
            self.register_buffer("slot", slot, persistent=False)
            table = torch.cat((torch.zeros(1, self.dim), torch.as_tensor(vectors)))
            self.register_buffer("pretrained", table, persistent=False)
        self.trained = nn.Embedding(count, self.dim, PAD)
        nn.init.uniform_(self.trained.weight, -init_range, init_range)
        with torch.no_grad():
            self.trained.weight[PAD] = 0
            if self.pretrained is not None:
                self.trained.weight[-1] = 0
            elif vectors is not None:
                self.trained.weight[torch.as_tensor(rows)] = torch.as_tensor(vectors)

    def forward(self, ids: Tensor) -> Tensor:
        if self.pretrained is None:
            return self.trained(ids)
        slot = self.slot[ids]
        known = slot.ne(0).unsqueeze(-1)
        return torch.where(known, F.embedding(slot, self.pretrained), self.trained(self.place[ids]))


class Lstm(nn.LSTM):
    """torch's LSTM, made to run in half precision on every CPU.

    oneDNN has a half-precision LSTM only for some processors and sizes; elsewhere torch raises "could not create a
    primitive descriptor". In half precision on a CPU, this class always uses torch's own loop instead, so that all
    machines compute the same numbers.
    """

    def forward(self, *given, **named):
        # torch.compile decomposes the LSTM itself
        if torch.compiler.is_compiling() or not _half_on_cpu(self.weight_hh_l0):
            return super().forward(*given, **named)
        with torch.backends.mkldnn.flags(enabled=False):
            return super().forward(*given, **named)


def _half_on_cpu(weight: Tensor) -> bool:
    """True if a layer with this weight computes in half precision on a CPU, because of its own dtype or autocast."""
    return weight.device.type == "cpu" and (weight.dtype in HALF or torch.is_autocast_enabled("cpu"))


class BiLstm(nn.Module):
    """Bidirectional LSTM over texts padded on the right: words [B, L, E], lengths [B] -> states [B, L, 2 * hidden].

    Each text is reversed within its own length, so padding never affects the state of a real word, and both directions
    run on plain tensors. On a CPU, torch's packed sequences would take about twenty times as long.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.forwards = Lstm(dim, hidden, batch_first=True)
        self.backwards = Lstm(dim, hidden, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        at = torch.arange(x.size(1), device=x.device)
        back_from_end = lengths.to(x.device).unsqueeze(1) - 1 - at  # [B, L]
        turned = torch.where(back_from_end < 0, back_from_end + x.size(1), back_from_end)  # padding maps to padding
        there = self.forwards(x)[0]
        back = self.backwards(_rows(x, turned))[0]
        return torch.cat((there, _rows(back, turned)), -1)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Gather x [B, L, D] along its second dimension with index [B, L]."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.size(-1)))


def packed(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run an LSTM over sequences padded on the right: x [B, L, E], lengths [B] -> states [B, L, D], (h, c).

    States are zero on padding. The result equals that of torch's own packing with `enforce_sorted=False`. torch would
    fetch the sort order from the GPU; here the order is computed on the host.

    Args:
        lengths: best on the CPU; lengths on a GPU cause a synchronisation.
    """
    lengths, order = lengths.cpu().sort(descending=True)
    there, back = (i.to(x.device, non_blocking=True) for i in (order, order.argsort()))
    states, (h, c) = lstm(pack_padded_sequence(x.index_select(0, there), lengths, batch_first=True))
    states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.size(1))
    return states.index_select(0, back), (h.index_select(1, back), c.index_select(1, back))


def widened(x: Tensor) -> Tensor:
    """Convert x to the precision used for losses: half precision becomes float32; float32 and float64 are unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def density_alpha(mapping: nn.Module) -> float | None:
    """alpha of a mapping over densities, made by `sa.make` (1: Gaussian, 2: truncated parabola); otherwise None."""
    return float(mapping.alpha) if mapping.spec.over == "density" else None


@torch.no_grad()
def density_on_words(mu: Tensor, sigma_sq: Tensor, alpha: float, mask: Tensor) -> Tensor:
    """Approximate mass per word [B, L] of densities (mu, sigma_sq) [B] over texts whose words are given by mask [B, L].

    Each word covers an interval of width 1 / L (L: number of words of the text); its mass is the density at the centre
    of the interval, divided by L. The mass is exactly zero outside the density's support.
    """
    mu, sigma_sq = mu.double().unsqueeze(-1), sigma_sq.double().unsqueeze(-1)
    mass = (BetaGaussian(mu, sigma_sq, alpha).pdf(document_positions(mask)) / mask.sum(-1, keepdim=True)).float()
    if alpha == 1:
        mass = mass.clamp(min=torch.finfo(mass.dtype).tiny)  # a Gaussian is never zero, but float32 may underflow
    return mass.masked_fill(~mask, 0.0)
