"""Pictures: heat maps in a terminal, attention of trained models, the papers' figures, the mappings."""
