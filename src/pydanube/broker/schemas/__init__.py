"""The schema registry: subjects and their versions, the bindings of topics, and the check of published payloads."""
