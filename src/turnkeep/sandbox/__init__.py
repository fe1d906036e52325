"""The sandbox's own server: it runs agent loops, and their tools in boxes that die with the turn."""
