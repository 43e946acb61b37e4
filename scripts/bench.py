"""Measure speed: of mappings, attention, training, a classifier of documents, and a language model; write the pages.

python scripts/bench.py mappings        every mapping against torch.softmax and the package entmax (ten minutes)
    --only       beginnings of labels, or names of mappings, separated by commas
    --shapes     rows x length, e.g. 1280x30,64x32000  --no-peers   leave out entmax
    --check      instead, compare rows, attention and a training step with the ratios of this instruction set in
                 benchmarks/gate.json; fail if one is 15 % slower in every try. --record writes the ratios first
python scripts/bench.py attention       sa.sparse_attention against torch's attention and the composition (ten minutes)
    --n          positions: 512, 1024, 4096, 8192
python scripts/bench.py training        training and beam search of every mapping against softmax (twenty)
    --models     as in docs/reference/benchmarks.md (default all)   --words  vocabulary size (default 2000)
    --mappings   (default: all that need only scores)   --batch     sentences (default 32)     --device  cpu or cuda
python scripts/bench.py documents       steps of a self-attention classifier over documents, with their memory (two)
    --words      per review (default 400)              --batch      reviews (default 16)       --mappings  beside softmax
    --seconds    in total (default 60)
python scripts/bench.py language_model  train over 4,096 bytes with softmax, sparsemax, entmax 1.5 (thirty)
    --only       rows to train; continues them         --page       train nothing; measure, and write the page
    --root       folder of the data                    --seconds    processor time for training a row (default 600)
python scripts/bench.py length          train small decoders on 4 to 16 symbols, test them on up to 128 (ninety)
    --page       train nothing; write the page         --root       folder of the finished models' scores

    --output     file or folder to write; - only prints             --seconds    per shape or case and direction (default 2)
    --turns      for each mapping                      --threads    torch threads (default 1; more only if idle)

Rows are timed on the GPU if there is one. To time the CPU there: CUDA_VISIBLE_DEVICES= python scripts/bench.py mappings
Examples: python scripts/bench.py mappings --only sparsemax,top_k --no-peers --output -    # no page is written
          python scripts/bench.py training --models 'LSTM 128' --mappings sparsemax entmax --turns 5 --output -
"""

from _entry import commands

main = commands(
    globals(), "benchmarks.commands", "mappings", "attention", "training", "documents", "language_model", "length"
)
