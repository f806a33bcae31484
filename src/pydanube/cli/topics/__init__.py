"""Topics and namespaces on the command line, their policies and rates."""
