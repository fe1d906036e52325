"""One module per topic; each declares its endpoints with their policies."""
