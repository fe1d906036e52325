"""What an agent can do: tools behind one port."""
