"""Fitted estimators as folders: saving, loading, and the journal of changes."""
