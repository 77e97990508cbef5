"""`plant serve`: wrong words end in one line that names the thing and the remedy."""

import errno
import socket

import pytest

from steadyhand.adapters.sim import server


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--directory", "x", "--lokstep"], "did you mean --lockstep?"),
        (["--directory", "x", "--port", "70000"], "a whole number from 0 to 65535"),
        (["--lockstep"], "required: --directory"),
        (["--directory", "x", "--lockstep", "--time-scale", "2"], "not allowed"),
        (["--directory", "x", "--plant", "moon"], "thermal_storage"),
    ],
)
def test_a_typo_is_one_line(words, told, capsys):
    with pytest.raises(SystemExit) as ended:
        server._parsed(words)
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert told in text


def test_most_used_options_come_first():
    text = server.parser().format_help()
    order = [text.index(word) for word in ("most used", "what happens", "server", "for tests")]
    assert order[0] < order[1] < order[3]
    assert text.index("--port PORT") < text.index("--dummy-namespaces")
    assert max(map(len, text.splitlines())) <= 80


def test_a_taken_port_is_named_with_the_remedy(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["--directory", str(tmp_path / "plant"), "--port", str(port)]
        assert server.main(words) == server.EX_IOERR
    text = capsys.readouterr().err
    assert f"--port {port}: cannot listen there: something else has that port" in text
    assert str(int(errno.EADDRINUSE)) not in text.replace(str(port), "")
    assert server._parsed(["--directory", "x"]).time_scale == 1.0
