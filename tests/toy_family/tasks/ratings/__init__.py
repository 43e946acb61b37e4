"""A toy family: the number of a text's class, as a real number."""
