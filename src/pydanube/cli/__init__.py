"""COMMANDS. What people and scripts type: ``danube ...``.

Lives here      the command line: arguments in, client or broker called, text or JSON out; the bench and its baselines
May import      every package, but inside the command that needs it: ``danube --help`` has to start at once
Flows through   stdout carries results only, stderr carries notes, progress and the one line that says what failed
Never           decisions that a program could not get through the client
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the ``danube`` command."""
    from pydanube.runtime.signals import dump_threads_on_request

    from .root import run
    from .standard_streams import open_streams

    open_streams()
    dump_threads_on_request(sys.stderr)
    run()
