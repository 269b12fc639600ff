"""Compiled loops over tokens, for the CPU (numba)."""
