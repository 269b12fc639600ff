"""Models with their memory in a store; rows are fetched on demand."""
