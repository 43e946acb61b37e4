"""Tables: turn scores into rows, statistics, verdicts and text."""
