"""Without playwright, which `make test-browser` installs, there is nothing here to run."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("playwright") else ["test_*.py"]
