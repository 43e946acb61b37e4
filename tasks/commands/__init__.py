"""What the scripts call: one file for each command, and the grammar of their command lines (`entry`)."""
