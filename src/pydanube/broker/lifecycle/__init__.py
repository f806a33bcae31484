"""What ends by itself or by command: retention, time to live, quotas, unused and deleted topics."""
