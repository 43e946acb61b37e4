"""Claims of the papers, and whether the rows of a table support them."""
