"""What a conversation is: pure values without I/O."""
