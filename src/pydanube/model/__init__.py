"""NOUNS. What everything else talks about: names, positions, topics, limits, errors.

Lives here      plain values without behaviour beyond their own validity
May import      the standard library
Flows through   every room speaks these words
Never           I/O, clocks, randomness, bytes on the wire
"""
