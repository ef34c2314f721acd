"""Every block of code in the README and on the first page is true: each program runs, each command exists."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from grelmicro.coordination import LeaderElection, Lock
from grelmicro.providers.redis import RedisProvider

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/index.md")
REDIS_URL = "redis://localhost:6379/0"

# What each Python block prints, in any order; by the heading that it stands under.
PROGRAMS = {
    "README.md: grelmicro": ["the cart is ours, with fencing token [0-9]{16}"],
    "README.md: Three uses": ["cleaning up", "sending mails"],
    "docs/index.md: A lock": ["Ada got it", "Bob came too late"],
    "docs/index.md: Over many processes": ["process [0-9]+ holds it for (10.0|9.9) s at most"],
    "docs/index.md: When it does not go as planned": [
        "busy: somebody else has it",
        "lost: the lease ended before the work did",
    ],
    "docs/index.md: A leader": ["sending mail 0", "sending mail 1", "sending mail 2", "all sent"],
    "docs/index.md: A schedule": [
        "cleaning up",
        "__main__:clean_up .* FireInfo.*SUCCESS.*",
        "__main__:report .* None",
    ],
}
UNTIL_STOPPED = {"README.md: Three uses"}


@dataclass(frozen=True)
class Block:
    place: str
    language: str
    code: str


def blocks():
    found = []
    for page in PAGES:
        heading = ""
        text = (ROOT / page).read_text()
        for match in re.finditer(r"^#+ ([^\n]+)$|^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if match[1]:
                heading = match[1]
            else:
                found.append(Block(f"{page}: {heading}", match[2], match[3]))
    return found


PYTHON = [block for block in blocks() if block.language == "python"]
SHELL = [block for block in blocks() if block.language == "bash"]


def test_every_block_is_run_here():
    assert sorted(block.place for block in PYTHON) == sorted(PROGRAMS)
    assert {block.language for block in blocks()} == {"python", "bash"}


def run(block, path, url):
    path.write_text(block.code.replace(REDIS_URL, url))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GREL_")}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-u", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            seen = ""
            if block.place in UNTIL_STOPPED:
                missing = set(PROGRAMS[block.place])
                for line in process.stdout:
                    seen += line
                    missing.discard(line.strip())
                    if not missing:
                        break
                process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, seen + out, err


def check(block, path, url=""):
    code, out, err = run(block, path, url)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for expected in PROGRAMS[block.place]:
        assert any(re.fullmatch(expected, line) for line in lines), (expected, lines)
    for line in lines:
        assert any(re.fullmatch(expected, line) for expected in PROGRAMS[block.place]), line


@pytest.mark.variant("memory")
@pytest.mark.parametrize(
    "block", [b for b in PYTHON if REDIS_URL not in b.code], ids=lambda block: block.place
)
def test_a_program_that_needs_no_server_does_what_it_says(block, tmp_path):
    check(block, tmp_path / "program.py")


@pytest.mark.parametrize("block", [b for b in PYTHON if REDIS_URL in b.code], ids=lambda block: block.place)
def test_a_program_that_needs_redis_does_what_it_says(block, tmp_path, own_redis):
    check(block, tmp_path / "program.py", own_redis.url)


def commands():
    return [shlex.split(line) for block in SHELL for line in block.code.splitlines()]


def test_every_command_exists(monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command, *arguments in commands():
        if command == "make":
            assert arguments[0] in targets
        elif command == "pip":
            action, what = arguments
            extras = re.fullmatch(r"\.\[(.+)\]", what)
            assert action == "install"
            assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
        else:
            assert command == "export"


def test_the_settings_from_the_environment_are_read(monkeypatch):
    exported = dict(arguments[0].split("=", 1) for command, *arguments in commands() if command == "export")
    assert exported
    for name, value in exported.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GREL_ENV_LOAD", raising=False)
    assert Lock("stock").config.lease_duration == 10
    assert LeaderElection("mailer").config.lease_duration == 30
    assert REDIS_URL in repr(RedisProvider())


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert "://" in target or (ROOT / page).parent.joinpath(target).exists(), target


def test_every_provider_that_is_named_exists():
    readme = (ROOT / "README.md").read_text()
    for name in re.findall(r"\b([A-Z]\w+)Provider\b", readme):
        module = __import__(f"grelmicro.providers.{name.lower()}", fromlist=["_"])
        assert hasattr(module, f"{name}Provider")
