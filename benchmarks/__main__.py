"""Run the benchmarks, print a table, write the figures as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from pathlib import Path

from benchmarks import _cases
from benchmarks._vendors import VENDORS

TARGETS = {
    "1 callers: rate / floor": {"memory": ">= 1.0", "redis": ">= 1.0", "postgres": ">= 0.85"},
    "100 callers: rate / floor": {"memory": ">= 1.0", "redis": ">= 4", "postgres": ">= 4"},
    "1000 callers: rate / rate at 100": {"memory": ">= 0.9", "redis": ">= 0.9", "postgres": ">= 0.9"},
    "contended: makespan / ideal": {"memory": "<= 1.2", "redis": "<= 1.4", "postgres": "<= 1.6"},
    "contended, one process: commands/hold": {"redis": "<= 3", "postgres": "<= 3"},
    "contended, 20 processes: commands/hold": {"redis": "<= 6", "postgres": "<= 8"},
    "hand-over across processes: median, ms": {"redis": "<= 2", "postgres": "<= 4"},
    "hand-over across processes: p99, ms": {"redis": "<= 15", "postgres": "<= 20"},
    "election, graceful hand-over: median, ms": {"memory": "<= 5", "redis": "<= 20", "postgres": "<= 30"},
}


async def _measure(names: list[str], rounds: int, only: str) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    for name in names:
        async with VENDORS[name]() as vendor:
            figures[name] = {}
            for case in _cases.CASES:
                if only in case.__name__:
                    figures[name] |= await case(vendor, rounds)
    return figures


def _table(figures: dict[str, dict[str, float]]) -> str:
    vendors = list(figures)
    rows = list(dict.fromkeys(row for columns in figures.values() for row in columns))
    lines = ["| | " + " | ".join(vendors) + " |", "|---|" + "---|" * len(vendors)]
    for row in rows:
        cells = []
        for vendor in vendors:
            value = figures[vendor].get(row)
            target = TARGETS.get(row, {}).get(vendor)
            cells.append(("-" if value is None else f"{value:,.4g}") + (f" ({target})" if target else ""))
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--vendors", nargs="+", default=list(VENDORS), choices=list(VENDORS))
    parser.add_argument("--rounds", type=int, default=7, help="medians are over so many (default: 7)")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), help="where the figures go")
    options = parser.parse_args()
    figures = asyncio.run(_measure(options.vendors, options.rounds, options.only))
    print(_table(figures))
    result: dict[str, object] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "rounds": options.rounds,
        "figures": figures,
    }
    if options.only in "imports":
        imports = _cases.imports(options.rounds)
        print()
        print("\n".join(f"{name} {value:.4g}" for name, value in imports.items()))
        result["imports"] = imports
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; figures in {options.json}")


if __name__ == "__main__":
    main()
