"""Sweeps: one algorithm with many values of its keys; in parallel, continued where they stopped."""
