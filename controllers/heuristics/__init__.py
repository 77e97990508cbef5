"""Heuristics: what ran the plant before, and takes over when trust is lost."""
