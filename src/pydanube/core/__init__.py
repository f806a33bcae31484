"""DECISIONS. What the broker decides, without input and output: state machines that take events and return what to do.

Lives here      one synchronous core for each subject that is decided: appends to a log, known producers, dispatch,
                tiering, slices, staged writes, access, placement; and estimates that decisions need: rates, sizes, ages
May import      model, the batch of codec, to look at its columns, and formats
Flows through   the broker calls a core with events and carries out what it returns; the time is part of the event
Never           files, sockets, clocks, tasks, randomness, `await`
"""
