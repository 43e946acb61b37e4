"""Visual question answering with discrete and continuous 2-D attention (Martins et al. 2020, Table 2)."""
