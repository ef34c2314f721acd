"""Help for tests: conformance suites for backends, and event loops whose time jumps."""
