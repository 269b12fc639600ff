"""What a fit leaves behind: members, memory, pool; all that predicts."""
