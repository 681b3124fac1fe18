"""The TLS settings of a client's connections follow their files."""

from __future__ import annotations

import logging
import ssl
from functools import partial
from pathlib import Path

import pytest

from gantrymq.remoting.tls import FollowedContext, client_context
from support.certificates import CA, OTHER_CA


def subjects(context: ssl.SSLContext) -> list[object]:
    return [each["subject"] for each in context.get_ca_certs()]


CA_SUBJECTS, OTHER_SUBJECTS = (subjects(client_context(str(file))) for file in (CA, OTHER_CA))


def followed(file: Path) -> FollowedContext:
    return FollowedContext(partial(client_context, str(file)), str(file))


def test_a_changed_file_counts_for_the_next_connection_and_its_former_authority_does_not(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(CA.read_bytes())
    context = followed(file)
    before = context()
    assert context() is before, "nothing is read again without a change"
    file.write_bytes(OTHER_CA.read_bytes())
    assert subjects(context()) == OTHER_SUBJECTS != CA_SUBJECTS
    assert subjects(before) == CA_SUBJECTS, "open connections keep their settings"


def test_a_link_to_another_folder_is_a_change(tmp_path: Path) -> None:
    """Kubernetes replaces the files of a secret in this way."""
    link = tmp_path / "ca.pem"
    link.symlink_to(CA)
    context = followed(link)
    assert subjects(context()) == CA_SUBJECTS
    link.unlink()
    link.symlink_to(OTHER_CA)
    assert subjects(context()) == OTHER_SUBJECTS


def test_the_last_settings_stay_while_the_file_cannot_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(CA.read_bytes())
    context = followed(file)
    with caplog.at_level(logging.WARNING, "gantrymq"):
        for broken in (b"", b"no certificate"):
            file.write_bytes(broken)
            for _ in range(3):
                assert subjects(context()) == CA_SUBJECTS
        file.unlink()
        assert subjects(context()) == CA_SUBJECTS
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == 3, "one for each change"
    assert all("client_tls_files_refused" in line and str(file) in line for line in lines)
    assert "No such file" in lines[-1]
    file.write_bytes(OTHER_CA.read_bytes())
    assert subjects(context()) == OTHER_SUBJECTS


def test_a_missing_file_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        followed(tmp_path / "absent.pem")
