"""The bad network does what it says, and nothing else, to frames that a plain echo sends back."""

import socket
import threading
import time

import pytest

from steadyhand.adapters.sim.chaos_proxy import ChaosProxy, Trick, Way

WAIT_S = 0.3


def frame(number, length=40):
    body = bytes([number]) * (length - 8)
    return b"MSGF" + length.to_bytes(4, "little") + body


@pytest.fixture
def echo():
    """A server that sends everything back."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(client):
        with client:
            try:
                while data := client.recv(65536):
                    client.sendall(data)
            except OSError:
                pass

    def accept():
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


@pytest.fixture
def proxy(echo):
    with ChaosProxy("127.0.0.1", echo) as made:
        yield made


@pytest.fixture
def client(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port), 5.0) as made:
        yield made


def receive(client, length, timeout_s=5.0):
    """So many bytes; fewer where there are no more."""
    client.settimeout(timeout_s)
    data = b""
    try:
        while len(data) < length and (part := client.recv(length - len(data))):
            data += part
    except TimeoutError:
        pass
    return data


def test_a_good_network_changes_nothing(proxy, client):
    sent = b"".join(frame(i, 20 + i) for i in range(50))
    client.sendall(sent)
    assert receive(client, len(sent)) == sent
    assert proxy.frames == 100


def test_what_is_no_frame_goes_through_as_well(client):
    sent = bytes(range(256)) * 4
    client.sendall(b"\xff" * 8 + sent)
    assert receive(client, 8) == b"\xff" * 8


def test_a_delay_is_one_way_each(proxy, client):
    proxy.delay(0.1)
    started = time.monotonic()
    client.sendall(frame(1))
    assert receive(client, 40) == frame(1)
    assert time.monotonic() - started >= 0.2
    proxy.heal()


def test_nothing_is_lost_while_it_is_held(proxy, client):
    proxy.hold()
    client.sendall(frame(1))
    assert receive(client, 40, WAIT_S) == b""
    proxy.heal()
    assert receive(client, 40) == frame(1)


def test_a_connection_made_while_it_is_held_is_silent(proxy):
    proxy.hold()
    with socket.create_connection(("127.0.0.1", proxy.port), 5.0) as late:
        late.sendall(frame(1))
        assert receive(late, 40, WAIT_S) == b""
        proxy.heal()
        assert receive(late, 40) == frame(1)


def test_reset_and_refuse(proxy, client):
    client.sendall(frame(1))
    assert receive(client, 40) == frame(1)
    proxy.refuse()
    proxy.reset()
    with pytest.raises(ConnectionError):
        client.recv(1)
    with pytest.raises(ConnectionError):  # while it connects, or when it reads
        late = socket.create_connection(("127.0.0.1", proxy.port), 5.0)
        with late:
            late.recv(1)
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), 5.0) as again:
        again.sendall(frame(2))
        assert receive(again, 40) == frame(2)


def test_the_plants_half_ends(proxy, client):
    client.sendall(frame(1))
    assert receive(client, 40) == frame(1)
    proxy.half_close()
    client.settimeout(5.0)
    assert client.recv(1) == b""


@pytest.mark.parametrize("way", Way)
def test_tricks_on_one_frame(proxy, client, way):
    one, two, three = frame(1), frame(2), frame(3)
    for trick, wanted in (
        (Trick.DROP, two + three),
        (Trick.DUPLICATE, one + one + two + three),
        (Trick.SWAP, two + one + three),
        (Trick.CORRUPT, one[:10] + bytes([one[10] ^ 0xFF]) + one[11:] + two + three),
    ):
        proxy.spoil(trick, way=way, offset=10)
        client.sendall(one + two + three)
        assert receive(client, len(wanted)) == wanted, trick
    assert receive(client, 1, WAIT_S) == b""


def test_a_swapped_frame_that_nothing_follows_comes_late(proxy, client):
    proxy.spoil(Trick.SWAP)
    started = time.monotonic()
    client.sendall(frame(1))
    assert receive(client, 40) == frame(1)
    assert time.monotonic() - started >= 0.9


def test_cut_at_a_byte(proxy, client):
    proxy.spoil(Trick.CUT, offset=17)
    client.sendall(frame(1) + frame(2))
    client.settimeout(5.0)
    seen = b""
    with pytest.raises(ConnectionError):
        while True:
            part = client.recv(100)
            assert part, "cut, not closed"
            seen += part
    assert frame(1)[:17].startswith(seen)


def test_throttled_and_healed(proxy, client):
    proxy.throttle(20.0)
    client.sendall(frame(1))
    assert len(receive(client, 40, 1.0)) < 40
    proxy.heal()


def test_it_leads_elsewhere(proxy, echo):
    other = socket.create_server(("127.0.0.1", 0))
    proxy.target = other.getsockname()
    with socket.create_connection(("127.0.0.1", proxy.port), 5.0) as client, other:
        other.settimeout(5.0)
        there, _ = other.accept()
        with there:
            client.sendall(frame(7))
            assert receive(there, 40) == frame(7)


def test_closing_twice_ends_its_thread(echo):
    made = ChaosProxy("127.0.0.1", echo)
    before = threading.active_count()
    made.close()
    made.close()
    assert threading.active_count() < before
