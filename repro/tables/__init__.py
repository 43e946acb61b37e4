"""Tables: from scores to rows, statistics, verdicts and text."""
