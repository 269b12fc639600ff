"""Models whose memory is in a store: the rows that a query needs are fetched for it."""
