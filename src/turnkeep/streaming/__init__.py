"""From recorded events to what a reader is sent."""
