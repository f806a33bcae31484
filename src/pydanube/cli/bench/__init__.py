"""`danube bench`: producers, broker and consumers run as separate processes and are compared with bare baselines.

    command   options -> Scenario             runs     starts processes, collects what they measured
    scenario  what is measured                workers  the parent's side of a child process; `worker` is the child
    load      payloads and send schedule      baselines, bare_pipeline   without a broker
    checking  verification of deliveries      report   tables and ratios
    suite     the targets of the project

All durations are measured with the monotonic clock, which the processes of one machine share.
"""
