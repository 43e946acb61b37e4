"""Tasks: data, families of models and scores around the attention mappings, and the cells that train and score them."""
