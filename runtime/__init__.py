"""Run: the loop, its modes, its record and the tools around it."""
