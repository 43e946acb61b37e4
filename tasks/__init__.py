"""Tasks: data, models and scores around the attention mappings; one folder per task."""
