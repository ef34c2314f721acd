"""The demo, on a real API server."""

from __future__ import annotations

import re
import subprocess
import sys

from grelmicro.__main__ import main


def test_it_runs_on_a_cluster_and_finds_nothing_to_complain_about(kube_server):
    command = [sys.executable, "-m", "grelmicro", "demo", "--seconds", "5"]
    done = subprocess.run(
        [*command, "--kubeconfig", str(kube_server.kubeconfig)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "kubeconfig:///" in done.stdout
    assert re.findall(r"^  BAD .*", done.stdout, re.MULTILINE) == []
    assert "verdict: good" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_file_that_is_not_there_is_said_in_one_line(tmp_path, capsys):
    assert main(["demo", "--kubeconfig", str(tmp_path / "none")]) == 2
    assert "no such file" in capsys.readouterr().err
