"""Apply a row operation to tensors of any shape.

`shape` moves the attention dimension last and handles masks and precision. `apply` handles gradients, transforms and
hyperparameters given as tensors, and adds the contract around a user's function. `masked` calls native kernels with a
mask. `operators` provides the row operations as operators of torch's dispatcher. `ragged` is for nested tensors.
`bounded` puts an upper bound on every position.
"""
