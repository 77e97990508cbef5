"""How good is it really: in the loop, on held-out days."""
