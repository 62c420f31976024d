"""A missing server excuses a laptop, not CI. Shown by running pytest with a folder that holds no RabbitMQ."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers import SharedServers, shared_rabbitmq

A_TEST = "test_rabbitmq_nodes.py::test_the_shared_node_has_a_management_api"


def run_pytest(no_rabbitmq: Path, **environment: str) -> str:
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", str(Path(__file__).parent / A_TEST)]
    variables = {**os.environ, "REDRIVE_RABBITMQ_ROOT": str(no_rabbitmq), **environment}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False).stdout


def test_without_a_server_a_test_is_skipped_with_one_line(tmp_path: Path) -> None:
    said = run_pytest(tmp_path, CI="")

    assert "1 skipped" in said
    assert f"no RabbitMQ in {tmp_path}: run tools/install_servers.sh" in said


def test_without_a_server_a_test_fails_in_ci(tmp_path: Path) -> None:
    assert "1 error" in run_pytest(tmp_path, CI="true")


def test_a_shared_server_that_fails_tells_every_test_the_same_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDRIVE_RABBITMQ_ROOT", str(tmp_path))
    servers = SharedServers()
    try:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="no RabbitMQ under"):
                shared_rabbitmq(servers.socket)
    finally:
        servers.close()


def test_the_folder_of_the_run_is_wiped_at_its_end() -> None:
    servers = SharedServers()
    assert servers.directory.is_dir()

    servers.close()

    assert not servers.directory.exists()
