"""DECISIONS. What happens next: state machines that take events and say what must be done.

Lives here      one synchronous core for each thing that is decided: log, dispatch, access
May import      model, and the batch of codec as something to look at
Flows through   the broker brings events in and carries the effects out; time arrives inside the event
Never           files, sockets, clocks, tasks, randomness, `await`
"""
