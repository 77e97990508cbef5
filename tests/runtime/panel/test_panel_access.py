"""Who is who: the file of tokens, and sessions that are used up."""

import pytest

from steadyhand.controllers.errors import ConfigError, RequestError
from steadyhand.runtime.panel import access
from steadyhand.runtime.panel.access import MAX_SESSIONS, Access, read_people

ANN, BOB = "a" * 32, "b" * 32


def written(tmp_path, text):
    file = tmp_path / "panel.tokens"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(0o600)
    return file


def test_a_file_of_people(tmp_path):
    file = written(tmp_path, f"# night shift\n\nann {ANN}\nbob.b-2   {BOB}\n")
    assert read_people(file) == {"ann": ANN.encode(), "bob.b-2": BOB.encode()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names nobody"),
        ("# only a comment\n", "names nobody"),
        (f"ann {ANN[:-1]}\n", "line 1"),
        (f"ann:{ANN}\n", "line 1"),
        (f"\nAnn {ANN}\n", "line 2"),
        (f"ann {ANN} {BOB}\n", "line 1"),
        (f"ann {ANN}\nann {BOB}\n", "line 2 has a name or a token for a second time"),
        (f"ann {ANN}\nbob {ANN}\n", "line 2 has a name or a token for a second time"),
        (f"ann {ANN}\x00\n", "line 1"),
        (b"ann " + b"\xff" * 40 + b"\n", "line 1"),
        ("ann " + "a" * 257 + "\n", "line 1"),
        ("x" * 70_000, "is longer than"),
    ],
)
def test_a_wrong_file_is_refused_without_showing_what_is_in_it(tmp_path, text, words):
    with pytest.raises(ConfigError) as refusal:
        read_people(written(tmp_path, text))
    assert words in str(refusal.value)
    assert ANN[:20] not in str(refusal.value)


class Now:
    def __init__(self):
        self.s = 100.0

    def __call__(self):
        return self.s


def refused(code, call, *arguments):
    with pytest.raises(RequestError) as refusal:
        call(*arguments)
    assert refusal.value.code == code


def test_sessions_end_by_themselves_and_numbers_only_grow():
    now = Now()
    people = Access({"ann": ANN.encode(), "bob": BOB.encode()}, now)
    key = people.begin(people.person(ANN.encode()))
    people.admit("ann", key, 1)
    people.admit("ann", key, 7)
    for sequence in (7, 6, 1):
        refused("REPLAY", people.admit, "ann", key, sequence)
    refused("SESSION", people.admit, "bob", key, 8)
    people.admit("ann", key, 8)  # somebody else's try changed nothing
    now.s += access.IDLE_S - 1.0
    people.admit("ann", key, 9)
    now.s += access.IDLE_S + 1.0
    refused("SESSION", people.admit, "ann", key, 10)
    refused("SESSION", people.admit, "ann", key, 10)


def test_there_is_a_limit_on_sessions_and_the_one_least_used_goes():
    now = Now()
    people = Access({"ann": ANN.encode()}, now)
    keys = []
    for _ in range(MAX_SESSIONS):
        now.s += 1.0
        keys.append(people.begin("ann"))
    now.s += 1.0
    people.admit("ann", keys[0], 1)
    extra = people.begin("ann")
    refused("SESSION", people.admit, "ann", keys[1], 1)
    for key in (keys[0], *keys[2:], extra):
        people.admit("ann", key, 2)


def test_every_token_is_compared_whoever_it_is(monkeypatch):
    """No early end: the time must not tell which name a token almost fits."""
    seen = []
    monkeypatch.setattr(
        access.hmac, "compare_digest", lambda a, b: seen.append(b) or bytes(a) == bytes(b)
    )
    people = Access({"ann": ANN.encode(), "bob": BOB.encode()})
    assert people.person(ANN.encode()) == "ann"
    assert seen == [ANN.encode(), BOB.encode()]
