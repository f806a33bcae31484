"""Services on the command line."""
