"""What the scripts call, a file a command."""
