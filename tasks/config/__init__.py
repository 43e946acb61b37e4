"""Turn overrides into one typed configuration."""
