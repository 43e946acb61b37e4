"""How a row operation is applied to any tensor.

`shape`: the attention dimension last, masks, precision. `apply`: gradients, transforms, hyperparameters as tensors. `masked`:
native kernels with a mask. `operators`: the same as operators of torch's dispatcher. `contract`: what is added around a user's
function. `groups`: mappings that tie positions, with a tensor lam. `bounded`: an upper bound on every position. `slope`: the
gradient of the losses.
"""
