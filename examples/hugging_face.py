"""A model of Hugging Face, fine-tuned with sparsemax in place of softmax, without a change of its code.

    python examples/hugging_face.py      # seconds; needs transformers

The model is a tiny one made on the spot, so that nothing is downloaded. With a real one, write instead of `tiny()`:
    AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased", attn_implementation="sa_sparsemax")
"""

import torch
from torch import Tensor

import sparse_attention as sa

SPECIAL = 5  # the class is 1 if one of the words 0 to 4 occurs


def tiny() -> torch.nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(vocab_size=100, max_position_embeddings=16, dim=32, n_layers=2, n_heads=4, hidden_dim=64)
    return DistilBertForSequenceClassification(config)


def texts(count: int) -> tuple[Tensor, Tensor]:
    """Word numbers ``[count, 12]``, half of them with a special word, and classes ``[count]``."""
    ids, classes = torch.randint(SPECIAL, 100, (count, 12)), torch.randint(2, (count,))
    special = torch.randint(SPECIAL, (count,))
    at = torch.arange(count), torch.randint(12, (count,))
    ids[at] = torch.where(classes == 1, special, ids[at])
    return ids, classes


def main(steps: int = 200) -> None:
    torch.manual_seed(0)
    sa.integrations.transformers.register("sparsemax")  # as the attention implementation "sa_sparsemax"
    model = tiny()
    model.set_attn_implementation("sa_sparsemax")
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(steps):
        ids, classes = texts(64)
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=classes).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    ids, classes = texts(500)
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True)
    print(f"accuracy {100 * (out.logits.argmax(-1) == classes).float().mean():.1f} %")
    for layer, weights in enumerate(out.attentions):  # [B, heads, n, n]
        print(f"layer {layer + 1}: {100 * (weights == 0).float().mean():.0f} % of the weights are exactly 0")


if __name__ == "__main__":
    main()
