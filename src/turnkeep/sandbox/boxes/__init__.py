"""Boxes: where the hands of an agent work, cut off from everything else."""
