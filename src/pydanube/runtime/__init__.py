"""The outside world behind interfaces: time, randomness, tasks, disks, object stores, networks, logging.

Lives here      one small interface for each of them, the real implementation, and a fake that tests control; the small
                tools that every package needs: caches, retries, waits, rates
May import      model, the standard library, numpy (buffers to receive into), structlog; what a store or a
                span exporter needs, when opened
Flows through   every other package gets these objects passed in, so that a simulation can pass in others
Never           knowledge of topics, logs or protocols; a decision
"""
