"""Apply a row operation to tensors of any shape.

`shape` moves the attention dimension last and handles masks and precision. `apply` handles gradients, transforms and
hyperparameters given as tensors. `masked` calls native kernels with a mask. `operators` provides the row operations as
operators of torch's dispatcher. `contract` adds the contract around a user's function. `groups` is for mappings that
tie positions, with lam as a tensor. `ragged` is for nested tensors. `bounded` puts an upper bound on every position.
`slope` has the gradient of the losses.
"""
