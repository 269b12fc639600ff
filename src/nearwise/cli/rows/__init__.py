"""Files and folders that commands read, as rows."""
