"""Compiled loops over tokens, for the CPU (numba) and for GPUs (Triton)."""
