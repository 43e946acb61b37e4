"""Optional, more expensive metrics: does the class depend on the attended words?

Faithfulness (DeYoung et al. 2020): let r be the attended words of a text x, and m(x) the probability of the class that
the model predicts for x. Then

    comprehensiveness = m(x) - m(x without r)      high: the model needs these words
    sufficiency       = m(x) - m(only r)           low: these words are enough

r consists of the 1, 5, 10, 20 or 50 percent of the words with the largest weights: at least one word, and no words of
zero weight. Both metrics are means over the five percentages. Words are deleted from the text; an empty text is
replaced by one unknown word. If an example has two texts, only the first is changed.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tasks.classification.encode import EncodedSplit
from tasks.classification.predict import Batch, padded
from tasks.data.progress import Done
from tasks.data.symbols import UNK

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)


@torch.no_grad()
def faithfulness(model: nn.Module, split: EncodedSplit, batches: Sequence[Batch], done: Done) -> dict[str, float]:
    """The metrics comprehensiveness and sufficiency, computed for the model's first attention.

    Args:
        batches: the model's predictions for the split.
    """
    sums = {"comprehensiveness": 0.0, "sufficiency": 0.0}
    for number, batch in enumerate(batches):
        p = next(iter(batch.attention.values()))
        said = batch.log_probs.argmax(-1, keepdim=True)
        whole = batch.log_probs.gather(1, said).exp()
        for share in SHARES:
            chosen = [attended(row[mask], share) for row, mask in zip(p, batch.mask)]
            for name, keep in (("comprehensiveness", False), ("sufficiency", True)):
                texts = (np.asarray(split.fields[0][int(i)]) for i in batch.index)
                rows = [words[flags == keep] for words, flags in zip(texts, chosen)]
                left = probabilities(model, split, batch.index.tolist(), rows).gather(1, said)
                sums[name] += float((whole - left).sum()) / len(SHARES)
        done((number + 1) / len(batches))
    return {name: value / len(split) for name, value in sums.items()}


def attended(weights: Tensor, share: float) -> np.ndarray:
    """Flags [L] that select the `share` of words with the largest weights [L].

    At least one word is selected, but no words of zero weight; among equal weights, earlier words come first.
    """
    count = min(max(1, math.ceil(share * len(weights))), int((weights > 0).sum()))
    flags = np.zeros(len(weights), dtype=bool)
    flags[weights.argsort(descending=True, stable=True)[:count].numpy()] = True
    return flags


def probabilities(
    model: nn.Module, split: EncodedSplit, examples: Sequence[int], first: Sequence[np.ndarray]
) -> Tensor:
    """Class probabilities [B, C] for examples whose first text is replaced by the ids `first`."""
    device = next(model.parameters()).device
    others = [[field[i] for i in examples] for field in split.fields[1:]]
    texts, lengths = padded([[row if len(row) else np.array([UNK]) for row in first], *others])
    logits, _ = model([text.to(device) for text in texts], lengths)
    return logits.float().softmax(-1).cpu()
