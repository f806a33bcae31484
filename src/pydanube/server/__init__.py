"""The composition root: starts a broker with its listeners, and prepares, copies or restores what it starts from.

server          the parts of a broker, in the order in which they start and stop
securing        TLS, keys and roles from the settings
copying         moves metadata between stores
restoring       makes a data directory from an object store
"""
