"""`danube bench`: producers, broker and consumers as processes of their own, measured beside bare baselines.

    command   options -> Scenario             runs     starts processes, collects what they measured
    scenario  what is measured                workers  the parent's hold on a child; `worker` is the child's `main`
    load      payloads and their verification baselines, pipeline   the same machine without a broker
    suite     the targets of the project      report   tables and ratios

Every duration is taken with the monotonic clock, which all processes of one machine share.
"""
