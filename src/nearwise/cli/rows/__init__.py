"""Input files and folders of commands, as rows."""
