"""VALUES. The types that all other packages share: names, positions, topics, limits, errors.

Lives here      plain values that check their own validity and do nothing else; how values are read from text (`text`)
May import      the standard library
Flows through   every package uses these types
Never           I/O, clocks, randomness, bytes on the wire
"""
