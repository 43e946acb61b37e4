"""What was acquired, read in its published format: text, tables, JSON, parallel files, splits by content."""
