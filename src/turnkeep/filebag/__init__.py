"""The file bag: attachments in, generated files out."""
