"""Real servers and network faults for the tests; see README.md in this directory."""
