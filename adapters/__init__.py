"""Reach: links to plants, real and simulated."""
