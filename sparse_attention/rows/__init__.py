"""How a row operation is applied to any tensor.

`shape`: the attention dimension last, masks, precision. `apply`: gradients, transforms, hyperparameters as tensors.
`compiled`: whole graphs under torch.compile. `contract`: what is added around a user's function. `groups`: fusedmax and
oscarmax with a tensor lam. `bounded`: the operation with an upper bound on every position. `slope`: the losses' gradient.
"""
