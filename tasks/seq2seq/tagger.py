"""A fertility tagger (Malaviya et al. 2018): it predicts how many target words will be aligned to each source word.

h = BiLSTM(embed(x)), with several layers;  f_i ~ softmax(U h_i) over 0, 1, ..., most
"""

from torch import Tensor, nn

from tasks.data.symbols import PAD
from tasks.layers.lstm import BiLstm

MOST = 10  # larger fertilities are clipped to this


class Tagger(nn.Module):
    """Scores of the possible fertilities of every source word.

    Args:
        size: size of the source vocabulary. embed_dim: size of word vectors. hidden_dim: LSTM size per direction.
    """

    def __init__(self, size: int, embed_dim: int, hidden_dim: int, layers: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
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
        return self.output(x)
