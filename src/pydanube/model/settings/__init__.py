"""SETTINGS. Every setting of a broker, as values.

sections    the settings of one part of a broker each; the parts take the sections that they need
kinds       the kinds of their values: what is allowed, and how a value is written as text
words       the words that settings and `runtime` share

Where values come from, and what must hold between them, is in `pydanube.settings`.
"""
