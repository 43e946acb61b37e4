"""Tables: scores into rows, statistics, verdicts, texts."""
