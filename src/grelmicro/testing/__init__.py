"""Help for tests: event loops whose time jumps, and `conformance`, the suites for authors of backends."""

from grelmicro.testing._clock import VirtualClockLoop, virtual_asyncio, virtual_trio

__all__ = ["VirtualClockLoop", "virtual_asyncio", "virtual_trio"]
