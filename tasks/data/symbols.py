"""Special symbols of every vocabulary, in fairseq's order. Words start at number 4 in an encoded folder's dict.txt."""

BOS, PAD, EOS, UNK = range(4)
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
FIRST = len(SPECIAL)  # number of the first word
