"""Who speaks: models behind one port."""
