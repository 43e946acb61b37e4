"""Length generalisation: small decoders with softmax, sparse and scaled attention, trained on short sequences."""
