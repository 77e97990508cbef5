"""Files with secrets: who may read them, and that reading one never hangs or shows anything."""

import os

import pytest

from steadyhand.adapters.input_file import CREDENTIALS, read_secret, read_word
from steadyhand.controllers.errors import ConfigError

SECRET = "correct horse battery staple"


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(0o600)
    return file


def test_what_only_we_can_read_is_read(secret):
    assert read_secret(secret) == SECRET.encode() + b"\n"
    assert read_word(secret) == SECRET


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o660, 0o601, 0o777])
def test_what_others_can_reach_is_no_secret(secret, mode):
    secret.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        read_secret(secret)
    assert str(refused.value) == (
        f"{secret}: has mode {mode:04o}: others could read it; chmod 600 it"
    )


def test_a_credential_of_systemd_may_show_the_mask_of_its_list(secret, monkeypatch):
    """root:root 0440 in the credentials' folder, and only there."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    secret.chmod(0o440)
    monkeypatch.setenv(CREDENTIALS, str(secret.parent))
    assert read_word(secret) == SECRET
    monkeypatch.setenv(CREDENTIALS, str(secret.parent / "other"))
    with pytest.raises(ConfigError, match="mode 0440"):
        read_word(secret)


def test_nothing_is_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for file in (pipe, tmp_path):
        with pytest.raises(ConfigError, match="is no regular file"):
            read_secret(file)


def test_no_memory_is_filled(secret):
    with pytest.raises(ConfigError, match="is longer than 8 bytes"):
        read_secret(secret, 8)
    assert read_secret(secret, len(SECRET) + 1)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "must hold the secret as its only line"),
        (b"\n", "must hold the secret as its only line"),
        (b"horse\nbattery", "must hold the secret as its only line"),
        (b"horse\xff", "is no text; write the secret as one line of UTF-8"),
    ],
)
def test_a_word_is_one_line_of_text(secret, content, why):
    secret.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_word(secret)
    assert str(refused.value) == f"{secret}: {why}"


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError) as refused:
        read_secret(tmp_path / "gone")
    assert str(refused.value) == f"{tmp_path / 'gone'}: cannot be read: No such file or directory"
