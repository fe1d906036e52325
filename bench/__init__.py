"""Turnkeep side by side with its peers and with the least that the same durability can cost. `make bench` runs it."""
