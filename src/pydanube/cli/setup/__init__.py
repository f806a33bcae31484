"""What a broker or a command needs before it runs: `serve`, settings, profiles, checks of the machine."""
