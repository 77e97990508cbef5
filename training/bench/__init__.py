"""Our figures beside named rivals: each goal one run, the rows taking turns, ratios as answers."""
