"""What must survive: turns, their rows and events, and everything that belongs to them."""
