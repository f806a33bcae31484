"""History in object storage: what was sealed is uploaded, listed in the catalog, and read from there again."""
