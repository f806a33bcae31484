"""THE WORLD. What a program cannot decide for itself: time, chance, tasks, disks, stores, networks, where logs go.

Lives here      one small interface for each of them, the real thing, and a fake that a test can steer
May import      model, the standard library, numpy (memory to receive into), structlog; what a store needs, when opened
Flows through   every shell is handed what it needs from here, so that a simulation can hand it something else
Never           knowledge of topics, logs or protocols; a decision
"""
