"""The commands behind the scripts, one file each, and the grammar of their command lines (`entry`)."""
