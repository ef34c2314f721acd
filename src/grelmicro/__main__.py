"""The command line: `python -m grelmicro demo`."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from typing_extensions import override

from grelmicro.config import mask_url


class _Parser(argparse.ArgumentParser):
    @override
    def error(self, message: str) -> NoReturn:
        # One line, and a URL in the wrong place may hold a password.
        self.exit(2, f"{self.prog}: {' '.join(map(mask_url, message.split(' ')))}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _Parser(prog="python -m grelmicro", description="Tools that come with grelmicro.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="command", parser_class=_Parser)
    demo = commands.add_parser(
        "demo",
        help="watch worker processes share a lock, a leader and a schedule, and judge what happened",
        description=(
            "Start worker processes that share one counter through a lock, elect a leader and run a "
            "scheduled job; kill two of them on the way; judge from what they recorded. The exit code is 0 "
            "when the verdict is good, 1 when it is bad, 2 when the demo cannot run."
        ),
    )
    demo.add_argument("--workers", default="4", metavar="N", help="how many processes (default: 4)")
    server = demo.add_mutually_exclusive_group()
    server.add_argument(
        "--url",
        metavar="URL",
        help="the server to use, redis://... or postgresql://... (default: an embedded Valkey)",
    )
    server.add_argument(
        "--kubeconfig", metavar="FILE", help="use the Kubernetes cluster of this file's current context"
    )
    demo.add_argument(
        "--seconds", default="12", metavar="S", help="about how long to run once all are up (default: 12)"
    )
    demo.add_argument(
        "--no-lock", action="store_true", help="only count, and without the lock: updates get lost"
    )
    options = parser.parse_args(arguments)
    try:
        from grelmicro.demo._command import demo as run  # noqa: PLC0415 - only this command needs it
        from grelmicro.demo._vendor import url_of  # noqa: PLC0415 - as above

        return run(
            workers=options.workers,
            url=url_of(options.kubeconfig) if options.kubeconfig else options.url,
            seconds=options.seconds,
            use_lock=not options.no_lock,
        )
    except KeyboardInterrupt:
        sys.stderr.write(f"{demo.prog}: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
