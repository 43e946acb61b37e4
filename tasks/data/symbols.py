"""Special symbols of every vocabulary, in fairseq's order: an encoded folder's dict.txt lists the words from number 4 on."""

BOS, PAD, EOS, UNK = range(4)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
FIRST = len(SPECIAL)  # number of the first word
