"""From overrides to one typed configuration."""
