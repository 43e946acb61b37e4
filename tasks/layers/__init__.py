"""Torch layers that several families use: word vectors, LSTMs, the precision of losses, the order of a density."""

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
    """Vectors of token ids: pretrained ones fixed (or trained), the others trained from U(-r, r). [...] -> [..., dim].

    Padding is zero. Pretrained vectors decide `dim`; a fixed one is a buffer, so no optimiser and no weight decay
    touches it.

    Args:
        size: number of ids.
        dim: of a vector, where none is pretrained.
        init_range: r.
        vectors, rows: pretrained vectors [found, dim] float32 and their ids [found].
        fixed: pretrained vectors are not trained.
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
            # Trained words keep the front of the table, the found ones share an unused last row and add their own
            # vector.
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
    """torch's LSTM, which runs in half precision on every CPU.

    oneDNN has a half-precision LSTM for some processors and sizes only; elsewhere torch raises "could not create a primitive
    descriptor". On a CPU torch's own loop is used instead, on every machine, so that all of them compute the same numbers.
    """

    def forward(self, *given, **named):
        # torch.compile takes the LSTM apart by itself
        if torch.compiler.is_compiling() or not _half_on_cpu(self.weight_hh_l0):
            return super().forward(*given, **named)
        with torch.backends.mkldnn.flags(enabled=False):
            return super().forward(*given, **named)


def _half_on_cpu(weight: Tensor) -> bool:
    """Whether a layer with this weight computes in half precision on a CPU: by its own type, or by autocast."""
    return weight.device.type == "cpu" and (weight.dtype in HALF or torch.is_autocast_enabled("cpu"))


class BiLstm(nn.Module):
    """Bidirectional LSTM over texts padded on the right: words [B, L, E], lengths [B] -> states [B, L, 2 * hidden].

    Each text is reversed within its own length, so padding never reaches a state of a real word and both directions
    run on plain tensors: on a CPU torch's packed sequences take about twenty times as long.
    """

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.forwards = Lstm(dim, hidden, batch_first=True)
        self.backwards = Lstm(dim, hidden, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        at = torch.arange(x.size(1), device=x.device)
        turned = (lengths.to(x.device).unsqueeze(1) - 1 - at).remainder(x.size(1))  # [B, L]; padding lands on padding
        there = self.forwards(x)[0]
        back = self.backwards(_rows(x, turned))[0]
        return torch.cat((there, _rows(back, turned)), -1)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """x [B, L, D] at index [B, L] of its second dimension."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.size(-1)))


def packed(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """An LSTM over sequences padded on the right: x [B, L, E], lengths [B] -> states [B, L, D], (h, c), zero on padding.

    The same as torch's own packing of sequences in any order, which asks a GPU for their order; here it stays on the host.

    Args:
        lengths: on the CPU, or a GPU is waited for.
    """
    lengths, order = lengths.cpu().sort(descending=True)
    there, back = (i.to(x.device, non_blocking=True) for i in (order, order.argsort()))
    states, (h, c) = lstm(pack_padded_sequence(x.index_select(0, there), lengths, batch_first=True))
    states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.size(1))
    return states.index_select(0, back), (h.index_select(1, back), c.index_select(1, back))


def widened(x: Tensor) -> Tensor:
    """x in the precision of losses: half precision as float32, float32 and float64 as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def density_alpha(mapping: nn.Module) -> float | None:
    """alpha of a mapping over densities (1 Gaussian ... 2 truncated parabola), made by `sa.make`; None for one over rows."""
    return float(mapping.alpha) if mapping.spec.over == "density" else None


@torch.no_grad()
def density_on_words(mu: Tensor, sigma_sq: Tensor, alpha: float, mask: Tensor) -> Tensor:
    """Mass per word [B, L] of densities (mu, sigma_sq) [B] over texts of the words mask [B, L]: density / L at the words' cell
    centres, zero exactly off its support.
    """
    mu, sigma_sq = mu.double().unsqueeze(-1), sigma_sq.double().unsqueeze(-1)
    mass = (BetaGaussian(mu, sigma_sq, alpha).pdf(document_positions(mask)) / mask.sum(-1, keepdim=True)).float()
    if alpha == 1:
        mass = mass.clamp(min=torch.finfo(mass.dtype).tiny)  # a Gaussian is nowhere zero; float32 would make it so
    return mass.masked_fill(~mask, 0.0)
