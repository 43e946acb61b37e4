"""LSTMs that run in half precision on every processor and over padded texts without packing; a tagger; precision of a loss."""

from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tasks.data.symbols import PAD

HALF = (torch.float16, torch.bfloat16)
MOST = 10  # larger fertilities are clipped to this


class Lstm(nn.LSTM):
    """torch's LSTM, made to run in half precision on every CPU.

    oneDNN has a half-precision LSTM only for some processors and sizes; elsewhere torch raises "could not create a
    primitive descriptor". In half precision on a CPU, this class always uses torch's own loop instead, so that all
    machines compute the same numbers.
    """

    def forward(self, *args, **kwargs):
        weight = self.weight_hh_l0
        half = weight.dtype in HALF or torch.is_autocast_enabled("cpu")
        if weight.device.type != "cpu" or not half:
            return super().forward(*args, **kwargs)
        with torch.backends.mkldnn.flags(enabled=False):
            return super().forward(*args, **kwargs)


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
        back_from_end = lengths.to(x.device, non_blocking=True).unsqueeze(1) - 1 - at  # [B, L]
        turned = torch.where(back_from_end < 0, back_from_end + x.size(1), back_from_end)  # padding maps to padding
        there = self.forwards(x)[0]
        back = self.backwards(_rows(x, turned))[0]
        return torch.cat((there, _rows(back, turned)), -1)


class Tagger(nn.Module):
    """A fertility tagger (Malaviya et al. 2018): how many target words will be aligned to each source word.

    h = BiLSTM(embed(x)), with several layers;  f_i ~ softmax(U h_i) over least, ..., MOST

    Args:
        size: size of the source vocabulary. embed_dim: size of word vectors. hidden_dim: LSTM size per direction.
        least: the smallest fertility, 0 or 1; smaller ones have a score of -inf.
    """

    def __init__(
        self, size: int, embed_dim: int, hidden_dim: int, layers: int = 2, dropout: float = 0.2, least: int = 0
    ) -> None:
        super().__init__()
        self.least = least
        self.embed = nn.Embedding(size, embed_dim, PAD)
        dims = [embed_dim] + [2 * hidden_dim] * (layers - 1)
        self.layers = nn.ModuleList(BiLstm(dim, hidden_dim) for dim in dims)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(2 * hidden_dim, MOST + 1)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor) -> Tensor:
        """src_tokens [B, S] padded on the right, src_lengths [B] -> scores [B, S, MOST + 1]."""
        x = self.dropout(self.embed(src_tokens))
        for layer in self.layers:
            x = self.dropout(layer(x, src_lengths))
        scores = self.output(x)
        return nn.functional.pad(scores[..., self.least :], (self.least, 0), value=-torch.inf) if self.least else scores

    def expected(self, src_tokens: Tensor, src_lengths: Tensor) -> Tensor:
        """The expected fertilities, [B, S], which need not be whole numbers."""
        p = self(src_tokens, src_lengths).softmax(-1)
        return p @ torch.arange(MOST + 1, device=p.device).to(p)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Gather x [B, L, D] along its second dimension with index [B, L]."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.size(-1)))


def packed(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run an LSTM over sequences padded on the right: x [B, L, E], lengths [B] -> states [B, L, D], (h, c).

    States are zero on padding. The result equals that of torch's own packing with `enforce_sorted=False`. torch would
    fetch the sort order from the GPU; here the order is computed on the host. On a CPU, sequences of the same length
    run together, since torch uses oneDNN only for those (its own loop takes twice as long); not with dropout between
    layers, which would draw other numbers.

    Args:
        lengths: best on the CPU; lengths on a GPU cause a synchronisation.
    """
    lengths = lengths.cpu()
    if x.device.type != "cpu":
        return packed_at_once(lstm, x, lengths)
    counts = [len(lengths)] if lstm.dropout else list(Counter(sorted(lengths.tolist(), reverse=True)).values())
    lengths, order = lengths.sort(descending=True)
    parts = []
    for rows, own in zip(order.split(counts), lengths.split(counts)):
        states, (h, c) = lstm(pack_padded_sequence(x.index_select(0, rows), own, batch_first=True))
        parts.append((pad_packed_sequence(states, batch_first=True, total_length=x.size(1))[0], h, c))
    states, h, c = (torch.cat(part, dim) for part, dim in zip(zip(*parts), (0, 1, 1)))
    back = order.argsort()
    return states.index_select(0, back), (h.index_select(1, back), c.index_select(1, back))


def packed_at_once(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """As `packed`: one operation packs, one unpacks. torch's own functions start one for each position of a sequence."""
    at, order, back = torch.arange(x.size(1)).unsqueeze(1), lengths.argsort(descending=True, stable=True), None
    words = at < lengths[order]  # [L, B]
    place = (order * x.size(1) + at)[words].to(x.device, non_blocking=True)  # of packed words in [B * L]
    if not torch.equal(order, torch.arange(len(order))):  # batches come sorted
        back = order.argsort().to(x.device, non_blocking=True)
    sizes = words.sum(1)[: lengths.max()]
    states, last = lstm(PackedSequence(x.flatten(0, 1).index_select(0, place), sizes, None, back))
    data = states.data  # under autocast, in half precision on a GPU, unlike x
    states = data.new_zeros(at.numel() * len(x), data.size(1)).index_copy(0, place, data)
    return states.unflatten(0, x.shape[:2]), last


def widened(x: Tensor) -> Tensor:
    """Convert x to the precision used for losses: half precision becomes float32; float32 and float64 are unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
