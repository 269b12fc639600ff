"""The result of a fit: row models, heads and memory, which together predict."""
