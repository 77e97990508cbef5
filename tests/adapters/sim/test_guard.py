"""Who is let in, asked of a real server process over loopback."""

import asyncio
import stat
from datetime import UTC, datetime, timedelta

import pytest
from asyncua import Client, ua
from asyncua.common.utils import ServiceError
from asyncua.crypto.security_policies import SecurityPolicyBasic256Sha256
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from steadyhand.adapters.opcua.application_certificate import VALID_DAYS
from steadyhand.adapters.sim import guard
from steadyhand.adapters.sim.certificates import make_certificate, make_pki
from steadyhand.adapters.sim.plants import GAUGE_NOISE, RunSpec, make_runner
from steadyhand.adapters.sim.server import EX_CONFIG, INSECURE, main
from steadyhand.controllers.errors import ConfigError

REFUSALS = (ua.UaError, ServiceError, ConnectionError, asyncio.TimeoutError, OSError)


@pytest.fixture(scope="module")
def server(start_server):
    return start_server("--lockstep")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory, plant_pki):
    """A certificate with every right property except that nobody trusts it."""
    folder = tmp_path_factory.mktemp("stranger")
    cert, key = folder / "cert.der", folder / "key.pem"
    use = ExtendedKeyUsageOID.CLIENT_AUTH
    make_certificate(cert, key, plant_pki.client_uri, ["localhost"], use)
    return cert, key


def code_of(error: BaseException) -> int:
    return getattr(error, "code", 0)


def test_the_trusted_client_gets_in(server):
    async def go():
        async with server.client() as nodes:
            return await nodes.value("storage_energy_kwh")

    p = make_runner(RunSpec()).plant.parameters
    half = 0.5 * (p.energy_low_kwh + p.energy_high_kwh)
    assert asyncio.run(go()) == pytest.approx(half, abs=6 * GAUGE_NOISE["storage_energy_kwh"])


def test_the_trusted_user_certificate_gets_in(server, plant_pki):
    async def go():
        client = await server.make_client()
        await client.load_client_certificate(str(plant_pki.user_cert))
        await client.load_private_key(str(plant_pki.user_key))
        async with client:
            node = client.get_node(ua.NodeId(ua.ObjectIds.Server_ServiceLevel))
            return await node.read_value()

    assert asyncio.run(go()) == 255


def test_only_one_way_in_is_offered(server):
    async def go():
        return await Client(server.ready["endpoint"]).connect_and_get_server_endpoints()

    (endpoint,) = asyncio.run(go())
    assert endpoint.SecurityMode == ua.MessageSecurityMode.SignAndEncrypt
    assert endpoint.SecurityPolicyUri == SecurityPolicyBasic256Sha256.URI
    kinds = {token.TokenType for token in endpoint.UserIdentityTokens}
    assert kinds == {ua.UserTokenType.UserName, ua.UserTokenType.Certificate}


@pytest.mark.parametrize(
    ("user", "password"),
    [("controller", "wrong"), ("controller", ""), ("admin", None), ("Admin", ""), ("", None)],
)
def test_wrong_users_are_refused(server, user, password):
    async def go():
        async with server.client(user=user, password=password):
            pass

    with pytest.raises(REFUSALS):
        asyncio.run(go())


def test_anonymous_is_refused_by_the_server_itself(server):
    """Not only undeclared: the token is sent although no endpoint offers it."""

    async def go():
        client = await server.make_client()
        await client.connect_socket()
        try:
            await client.send_hello()
            await client.open_secure_channel()
            await client.create_session()
            params = ua.ActivateSessionParameters()
            policy = client.security_policy
            challenge = policy.peer_certificate + client._server_nonce
            params.ClientSignature.Algorithm = policy.AsymmetricSignatureURI
            params.ClientSignature.Signature = policy.asymmetric_cryptography.signature(challenge)
            params.UserIdentityToken = ua.AnonymousIdentityToken(PolicyId="anonymous")
            await client.uaclient.activate_session(params)
        finally:
            client.disconnect_socket()

    with pytest.raises(REFUSALS) as caught:
        asyncio.run(go())
    assert code_of(caught.value) == ua.StatusCodes.BadIdentityTokenRejected


def test_an_unknown_certificate_gets_no_channel(server, stranger):
    async def go():
        client = await server.make_client(*stranger)
        await client.connect_socket()
        try:
            await client.send_hello()
            await client.open_secure_channel()
        finally:
            client.disconnect_socket()

    with pytest.raises(REFUSALS):
        asyncio.run(go())


def test_an_unknown_certificate_with_the_right_password_is_refused(server, stranger):
    async def go():
        async with server.client(cert=stranger[0], key=stranger[1]):
            pass

    with pytest.raises(REFUSALS):
        asyncio.run(go())


async def _plain_channel(server) -> Client:
    client = Client(server.ready["endpoint"], timeout=4)
    await client.connect_socket()
    await client.send_hello()
    await client.open_secure_channel()
    return client


async def _plain_session(client: Client, certificate: bytes | None) -> ua.CreateSessionResult:
    params = ua.CreateSessionParameters()
    params.ClientNonce = b"n" * 32
    params.ClientCertificate = certificate
    params.EndpointUrl = client.server_url.geturl()
    params.RequestedSessionTimeout = 10_000
    return await client.uaclient.create_session(params)


@pytest.mark.parametrize("borrowed", [False, True])
def test_an_unencrypted_channel_serves_discovery_only(server, plant_pki, borrowed):
    """The library opens such a channel whatever policies are set; nothing may come of it.

    Neither without a certificate nor with the trusted client's, which is no secret.
    """

    async def go():
        client = await _plain_channel(server)
        try:
            assert len(await client.get_endpoints()) == 1
            with pytest.raises(REFUSALS):
                await client.get_namespace_array()
            certificate = plant_pki.client_cert.read_bytes() if borrowed else None
            await _plain_session(client, certificate)
            with pytest.raises(REFUSALS):  # not activated yet
                await client.get_namespace_array()
            params = ua.ActivateSessionParameters()
            params.UserIdentityToken = ua.UserNameIdentityToken(
                PolicyId="username",
                UserName="controller",
                Password=plant_pki.password.encode(),
            )
            with pytest.raises(REFUSALS) as caught:
                await client.uaclient.activate_session(params)
            assert code_of(caught.value) == ua.StatusCodes.BadSecurityChecksFailed
            with pytest.raises(REFUSALS):
                await client.get_namespace_array()
        finally:
            client.disconnect_socket()

    asyncio.run(go())


def test_a_living_session_cannot_be_taken_over_from_an_unencrypted_channel(server):
    """Session tokens are small counting numbers; knowing one must be worth nothing."""

    async def go():
        async with server.client() as nodes:
            token = nodes.client.uaclient.session.authentication_token
            thief = await _plain_channel(server)
            try:
                thief.uaclient.session.restore_authentication_token(token)
                params = ua.ActivateSessionParameters()
                params.UserIdentityToken = ua.AnonymousIdentityToken(PolicyId="anonymous")
                with pytest.raises(REFUSALS):
                    await thief.uaclient.activate_session(params)
                with pytest.raises(REFUSALS):
                    await thief.get_namespace_array()
            finally:
                thief.disconnect_socket()
            return await nodes.value("sequence")  # the rightful owner is not disturbed

    assert asyncio.run(go()) >= 0


def test_users_write_outputs_and_nothing_else(server):
    async def go():
        async with server.client() as nodes:
            (first, second) = await nodes.write(
                storage_energy_kwh=ua.Variant(1.0, ua.VariantType.Double),
                control_granted=ua.Variant(True, ua.VariantType.Boolean),
            )
            node = nodes.node("storage_discharge_kw")
            name = ua.DataValue(ua.Variant(ua.LocalizedText("mine"), ua.VariantType.LocalizedText))
            with pytest.raises(ua.UaStatusCodeError):
                await node.write_attribute(ua.AttributeIds.DisplayName, name)
            with pytest.raises(ua.UaStatusCodeError):
                await nodes.client.nodes.objects.add_object(nodes.index, "mine")
            return first, second

    for status in asyncio.run(go()):
        assert status.value == ua.StatusCodes.BadUserAccessDenied


def test_certificates_say_who_and_where(plant_pki):
    for path, uri in (
        (plant_pki.server_cert, plant_pki.server_uri),
        (plant_pki.client_cert, plant_pki.client_uri),
    ):
        certificate = x509.load_der_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.UniformResourceIdentifier) == [uri]
        assert "localhost" in names.get_values_for_type(x509.DNSName)
        assert "127.0.0.1" in [str(ip) for ip in names.get_values_for_type(x509.IPAddress)]
        assert certificate.public_key().key_size >= 2048
    assert [p.read_bytes() for p in plant_pki.trusted_servers.iterdir()] == [
        plant_pki.server_cert.read_bytes()
    ]


def test_secrets_are_private_and_kept(plant_pki):
    for path in (plant_pki.server_key, plant_pki.client_key, plant_pki.user_key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(plant_pki.password_file.stat().st_mode) == 0o600
    assert len(plant_pki.password) >= 32
    before = plant_pki.client_key.read_bytes(), plant_pki.password
    again = make_pki(plant_pki.directory, "thermal_storage")
    assert (again.client_key.read_bytes(), again.password) == before


def test_a_directory_open_to_others_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        make_pki(tmp_path, "thermal_storage")


def test_a_trusted_certificate_outside_its_dates_is_refused(plant_pki, monkeypatch):
    trust = guard.TrustList(plant_pki.trusted_clients)
    der = plant_pki.client_cert.read_bytes()
    assert trust.trusts(der)
    assert not trust.trusts(None) and not trust.trusts(der + b"x")

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + timedelta(days=VALID_DAYS + 1)

    monkeypatch.setattr(guard, "datetime", Later)
    assert not trust.trusts(der)


def test_certificates_can_be_short_lived(tmp_path):
    tmp_path.chmod(0o700)
    pki = make_pki(tmp_path, "thermal_storage", days=1.0 / 1440.0)
    for path in (pki.server_cert, pki.client_cert, pki.user_cert):
        certificate = x509.load_der_x509_certificate(path.read_bytes())
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert timedelta(seconds=59) <= life <= timedelta(seconds=61)


def test_the_long_word_opens_the_door(start_server):
    server = start_server("--lockstep", INSECURE)

    async def go():
        async with Client(server.ready["endpoint"], timeout=4) as client:
            return await client.get_namespace_index(server.ready["namespace"])

    assert asyncio.run(go()) >= 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--namespace-order", "1"], "--namespace-order 1"),
        (["--season", "monsoon"], "monsoon"),
        (["--side-channel", "/tmp/" + "x" * 120], "longer than 100"),
    ],
)
def test_bad_options_end_with_78_and_say_why(plant_pki, arguments, says, capsys):
    status = main(["--directory", str(plant_pki.directory), *arguments])
    assert status == EX_CONFIG
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e-300", "x", ""])
@pytest.mark.parametrize("option", ["--time-scale", "--shed-s", "--certificate-days"])
def test_numbers_beyond_all_sense_are_wrong_usage(plant_pki, option, value, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--directory", str(plant_pki.directory), f"{option}={value}"])
    told = capsys.readouterr().err
    assert told.startswith("steadyhand: plant serve: argument ")
    assert f"argument {option}: {value!r}: a number from" in told


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--port", "-1"), ("--port", "65536"), ("--days", "0"), ("--seed", "-1"),
        ("--end-after", "0"), ("--substeps", "0"), ("--dummy-namespaces", "-1"), ("--days", "1.5"),
    ],
)  # fmt: skip
def test_counts_beyond_all_sense_are_wrong_usage(plant_pki, option, value, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--directory", str(plant_pki.directory), f"{option}={value}"])
    assert f"argument {option}: {value!r}: a whole number from" in capsys.readouterr().err
