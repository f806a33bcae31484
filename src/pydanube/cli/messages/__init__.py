"""Messages on the command line: `danube produce` and `danube consume`."""
