"""JWTs: what is accepted, and every forgery that is not."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from pydanube.broker.security import authentication as authentication_module
from pydanube.broker.security import jwks as jwks_module
from pydanube.broker.security.authentication import (
    CHECKS_AT_ONCE,
    WAITING_PER_ADDRESS_MAX,
    AcceptedCredentials,
    Authentication,
)
from pydanube.broker.security.jwks import DOCUMENT_BYTES_MAX, MISSING_S, Jwks, JwksFile, JwksUrl, parse_jwks
from pydanube.core.identity import Credentials, Identity
from pydanube.model.errors import Full, Invalid, Unauthenticated, Unavailable
from pydanube.model.limits import TOKEN_BYTES_MAX
from pydanube.model.settings.sections import AuthSettings
from pydanube.runtime.clock import ManualClock
from waiting import until

RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
SECRET = "s3cret-of-the-cluster-0123456789abcdef"
ISSUER, AUDIENCE, HERE = "https://issuer.example", "danube", "192.0.2.7"


def document(**keys: Any) -> bytes:
    """A JWKS of public keys by their ids."""
    makers = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    made = []
    for key_id, key in keys.items():
        maker = next((one for kind, one in makers.items() if isinstance(key, kind)), OKPAlgorithm)
        made.append({**json.loads(maker.to_jwk(key.public_key())), "kid": key_id, "use": "sig"})
    return json.dumps({"keys": made}).encode()


ALL = document(r1=RSA_KEY, e1=EC_KEY, d1=ED_KEY)


class Source:
    """A document that a test changes, and that can be away."""

    def __init__(self, content: bytes) -> None:
        self.content: bytes | None = content
        self.fetched = 0

    async def __call__(self) -> bytes | None:
        self.fetched += 1
        if self.content is None:
            raise Unavailable("the issuer is away")
        return self.content


class World:
    def __init__(self, source: Source, stale_s: float, **settings: Any) -> None:
        self.clock = ManualClock()
        self.source = source
        self.jwks = Jwks(source, self.clock, 300.0, stale_s)
        accepted = AcceptedCredentials(settings.pop("secret", b""))
        chosen = AuthSettings(issuer=ISSUER, audience=AUDIENCE, leeway_s=0, **settings)
        self.authentication = Authentication(chosen, accepted, dict, self.jwks, self.clock)

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = self.clock.now_us() // 1_000_000
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 60, **changes}
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, key: Any = RSA_KEY, kid: str | None = "r1", alg: str = "RS256", **changes: Any) -> str:
        headers = {"kid": kid} if kid is not None else {}
        return jwt.encode(self.claims(**changes), key, alg, headers=headers)

    async def shows(self, token: str, address: str = HERE) -> Identity:
        return await self.authentication.authenticate(Credentials(token), address)

    async def refuses(self, token: str) -> None:
        """Show a token from an address that has not failed yet, and expect the words of every failure."""
        self.addresses = getattr(self, "addresses", 0) + 1
        with pytest.raises(Unauthenticated) as raised:
            await self.shows(token, f"198.51.100.{self.addresses % 250}")
        assert raised.value.message.startswith("the credentials are missing or not accepted")
        assert not token or token not in str(raised.value)


@asynccontextmanager
async def world(content: bytes = ALL, stale_s: float = 3600.0, **settings: Any) -> AsyncIterator[World]:
    made = World(Source(content), stale_s, **settings)
    await made.jwks.load()
    running = asyncio.get_running_loop().create_task(made.authentication.run())
    try:
        yield made
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def encoded(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts)


# -- accepted ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "kid", "alg"), [(RSA_KEY, "r1", "RS256"), (EC_KEY, "e1", "ES256"), (ED_KEY, "d1", "EdDSA")]
)
async def test_a_token_of_each_algorithm_names_its_user_and_groups(key: Any, kid: str, alg: str) -> None:
    async with world() as here:
        identity = await here.shows(here.token(key, kid, alg, groups=["ops", "Domain Users", 7]))
        assert (identity.principal.id, identity.principal.groups, identity.method) == ("user:alice", ("ops",), "jwt")
        assert identity.expires_at_us == here.claims()["exp"] * 1_000_000


async def test_danubes_tokens_name_their_principal_and_need_the_secret() -> None:
    danube = {"principal_type": "service_account", "principal_name": "loader", "sub": "x"}
    async with world(secret=SECRET.encode()) as here:
        assert (await here.shows(here.token(SECRET, None, "HS256", **danube))).principal.id == "service_account:loader"
        await here.refuses(here.token("another-secret-of-32-characters-or-so", None, "HS256", **danube))
        await here.refuses(here.token(SECRET, None, "HS256", **{**danube, "principal_type": "broker"}))
        assert (await here.shows(here.token(**danube))).principal.id == "user:x"  # a provider's token is no such token
    async with world() as here:
        await here.refuses(here.token(SECRET, None, "HS256", **danube))


async def test_name_and_groups_come_from_the_claims_that_are_configured() -> None:
    async with world(name_claim="email", groups_claim="realm_access.roles") as here:
        token = here.token(email="a@example.com", realm_access={"roles": ["dev"]})
        principal = (await here.shows(token)).principal
        assert (principal.id, principal.groups) == ("user:a@example.com", ("dev",))


# -- forged ------------------------------------------------------------------------------------------------------------


async def test_alg_none_is_refused() -> None:
    async with world(secret=SECRET.encode()) as here:
        for alg in ("none", "None", "NONE", ""):
            await here.refuses(encoded({"alg": alg, "kid": "r1"}, here.claims()))
            await here.refuses(encoded({"alg": alg}, here.claims()))


async def test_hs256_signed_with_the_public_key_is_refused() -> None:
    public = RSA_KEY.public_key()
    forms = [public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)]
    forms.append(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    forms.append(json.loads(ALL)["keys"][0]["n"].encode())
    async with world() as here, world(secret=SECRET.encode()) as with_secret:
        for form in forms:
            for kid in ("r1", None):
                header = {"alg": "HS256", "typ": "JWT", **({"kid": kid} if kid else {})}
                unsigned = encoded(header, here.claims()).rpartition(".")[0]
                signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
                    unsigned.encode(), form
                )
                token = f"{unsigned}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
                await here.refuses(token)
                await with_secret.refuses(token)


async def test_a_token_of_another_key_or_key_type_is_refused() -> None:
    async with world() as here:
        await here.refuses(here.token(OTHER_RSA_KEY))
        await here.refuses(here.token(EC_KEY, "r1", "ES256"))
        await here.refuses(here.token(RSA_KEY, "e1", "RS256"))
        await here.refuses(here.token(RSA_KEY, "r1", "RS512"))
        await here.refuses(here.token(RSA_KEY, "r1", "PS256"))
        await here.refuses(here.token(RSA_KEY, "unknown"))
        await here.refuses(here.token(RSA_KEY, None))  # of three keys, which?
    async with world(document(only=RSA_KEY)) as here:
        assert (await here.shows(here.token(RSA_KEY, None))).principal.name == "alice"


@pytest.mark.parametrize("name", ["jku", "x5u", "jwk", "x5c", "x5t", "crit", "b64", "zip", "enc"])
async def test_a_header_that_points_elsewhere_or_changes_the_reading_is_refused(name: str) -> None:
    values = {"crit": ["exp"], "jwk": json.loads(ALL)["keys"][0], "x5c": ["MIIB"]}
    async with world() as here:
        header = {"alg": "RS256", "kid": "r1", name: values.get(name, "http://127.0.0.1:9/keys")}
        await here.refuses(signed(json.dumps(header).encode(), json.dumps(here.claims()).encode()))
        assert (await here.shows(here.token())).principal.name == "alice"


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example"},
        {"iss": None},
        {"aud": "another"},
        {"aud": ["another", "third"]},
        {"aud": None},
        {"aud": {"danube": 1}},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"exp": -1},
        {"exp": 1e300},
        {"exp": int("9" * 4_000)},
        {"exp": -int("9" * 4_000)},
        {"nbf": int("9" * 4_000)},
        {"sub": None},
        {"sub": ""},
        {"sub": "two words"},
        {"sub": ["alice"]},
        {"sub": 7},
        {"nbf": "never"},
        {"nbf": -1},
        {"exp": [1]},
        {"exp": 0},
        {"iss": ["https://issuer.example"]},
        {"iss": "https://issuer.example/"},
        {"aud": []},
        {"aud": "DANUBE"},
        {"sub": "x" * 10_000},
        {"sub": "user:admin\n"},
    ],
    ids=lambda changes: str(changes)[:40],
)
async def test_wrong_and_missing_claims_are_refused(changes: dict[str, Any]) -> None:
    async with world() as here:
        unsigned = encoded({"alg": "RS256", "kid": "r1"}, here.claims(**changes)).rpartition(".")[0]
        signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(unsigned.encode(), RSA_KEY)
        await here.refuses(f"{unsigned}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}")


async def test_times_count_to_the_second_and_a_remembered_token_ends() -> None:
    async with world() as here:
        now = here.clock.now_us() // 1_000_000
        await here.refuses(here.token(exp=now - 1))
        await here.refuses(here.token(exp=now))
        await here.refuses(here.token(nbf=now + 1))
        token = here.token(exp=now + 1, nbf=now)
        assert (await here.shows(token)).principal.name == "alice"
        here.clock.advance(1.0)
        await here.refuses(token)


async def test_truncated_giant_and_garbled_tokens_are_refused() -> None:
    async with world() as here:
        token = here.token()
        for cut in range(0, len(token), 7):
            await here.refuses(token[:cut])
        await here.refuses(token + "a")
        await here.refuses(here.token(padding="x" * TOKEN_BYTES_MAX))
        for one in ("..", "a.b.c", "é.b.c", "\0.\0.\0", "[" * 3000 + ".e30.", encoded({"alg": ["RS256"]}, {})):
            await here.refuses(one)
        await here.refuses(encoded({"alg": "RS256", "kid": {"a": 1}}, here.claims()))
        nested = base64.urlsafe_b64encode(b'{"a":' * 1000).decode().rstrip("=")
        await here.refuses(f"{nested}.e30.AAAA")


async def test_a_header_or_claim_that_is_there_twice_does_not_count_for_two() -> None:
    """The signature covers both; readers differ in which one they take, so the check and the use must take the same."""
    async with world() as here:
        now = here.clock.now_us() // 1_000_000
        claims = f'{{"iss":"{ISSUER}","aud":"{AUDIENCE}","exp":{now + 60},"sub":"bob","sub":"alice"}}'.encode()
        for header in (b'{"alg":"none","alg":"RS256","kid":"r1"}', b'{"alg":"RS256","kid":"e1","kid":"r1"}'):
            assert (await here.shows(signed(header, claims))).principal.name == "alice"
        for header in (b'{"alg":"RS256","alg":"none","kid":"r1"}', b'{"alg":"RS256","kid":"r1","kid":"e1"}'):
            await here.refuses(signed(header, claims))
        expired = claims.replace(b'"sub":"bob"', b'"exp":%d' % (now - 1))
        assert (await here.shows(signed(b'{"alg":"RS256","kid":"r1"}', claims))).expires_at_us == (now + 60) * 1_000_000
        await here.refuses(signed(b'{"alg":"RS256","kid":"r1"}', expired))


def signed(header: bytes, claims: bytes) -> str:
    unsigned = b".".join(base64.urlsafe_b64encode(one).rstrip(b"=") for one in (header, claims))
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(unsigned, RSA_KEY)
    return (unsigned + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


# -- keys --------------------------------------------------------------------------------------------------------------


async def test_documents_that_are_none_are_refused() -> None:
    one = json.loads(document(a=RSA_KEY))["keys"][0]
    private = json.loads(RSAAlgorithm.to_jwk(RSA_KEY))
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "a"}
    for keys, why in (([one, one], "two keys"), ([{**private, "kid": "a"}], "private key"), ([secret], "no key")):
        with pytest.raises(Invalid, match=why):
            parse_jwks(json.dumps({"keys": keys}).encode())
    small = rsa.generate_private_key(65537, 1024)
    for content, why in (
        (b"{}", "no JWKS"),
        (b"\xff", "no JWKS"),
        (b"[" * 100_000, "no JWKS"),
        (json.dumps({"keys": [{**one, "kid": str(n)} for n in range(101)]}).encode(), "more than 100"),
        (b" " * (DOCUMENT_BYTES_MAX + 1), "more than"),
        (document(a=small), "no key"),
        (json.dumps({"keys": [{**one, "use": "enc"}]}).encode(), "no key"),
    ):
        with pytest.raises(Invalid, match=why):
            parse_jwks(content)


async def test_a_new_key_is_found_and_one_that_was_rotated_away_is_not_accepted() -> None:
    async with world(document(old=RSA_KEY)) as here:
        old = here.token(kid="old", exp=here.clock.now_us() // 1_000_000 + 10_000)
        assert (await here.shows(old)).principal.name == "alice"
        here.source.content = document(new=OTHER_RSA_KEY)
        here.clock.advance(MISSING_S)
        assert (await here.shows(here.token(OTHER_RSA_KEY, "new"))).principal.name == "alice"
        await here.refuses(old)  # it was remembered, and its key is gone


async def test_unknown_ids_cause_few_fetches() -> None:
    async with world() as here:
        before = here.source.fetched
        for number in range(20):
            await here.refuses(here.token(kid=f"unknown-{number}"))
        assert here.source.fetched == before
        here.clock.advance(MISSING_S)
        await asyncio.gather(*(here.refuses(here.token(kid=f"unknown-{number}")) for number in range(20)))
        assert here.source.fetched == before + 1


async def test_known_keys_outlive_an_outage_and_then_end() -> None:
    async with world(stale_s=1000.0) as here:
        here.source.content = None
        later = here.clock.now_us() // 1_000_000 + 100_000
        remembered = here.token(exp=later)
        await here.shows(remembered)
        await _advance(here, 900.0)
        assert (await here.shows(here.token(exp=later, n=1))).principal.name == "alice"
        await _advance(here, 301.0)
        await here.refuses(here.token(exp=later, n=2))
        await here.refuses(remembered)
        here.source.content = ALL
        await _advance(here, 300.0)
        assert (await here.shows(here.token(exp=later, n=3))).principal.name == "alice"


async def _advance(here: World, seconds: float) -> None:
    """Advance the time to when the document is read again, and wait until it was."""
    left = seconds
    while left > 0:
        step = min(left, 300.0)
        before = here.source.fetched
        await until(lambda: here.clock.sleeping)
        here.clock.advance(step)
        if step == 300.0:
            await until(lambda before=before: here.source.fetched != before and here.jwks._next is None)
        left -= step


async def test_a_file_is_read_again_when_it_changes_and_a_bad_one_keeps_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(document(a=RSA_KEY))
    clock = ManualClock()
    keys = Jwks(JwksFile(path), clock, 1.0, 100.0)
    await keys.load()
    path.write_bytes(b"not a document")
    with pytest.raises(Invalid):
        await keys.load()
    assert await keys.find("a") is not None
    clock.advance(101.0)
    await keys.load()  # unchanged, and still bad: the keys are not fresh by that
    assert keys._known("a") is None
    path.write_bytes(document(b=RSA_KEY))
    await keys.load()
    assert await keys.find("b") is not None and keys._known("a") is None
    path.unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        await keys.load()


@asynccontextmanager
async def served(answer: bytes, *, then_hang: bool = False) -> AsyncIterator[str]:
    """A server that answers every connection with these bytes; the URL."""
    release = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if then_hang:
            await release.wait()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
    finally:
        release.set()
        server.close()


def http(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def test_a_url_that_is_redirected_huge_slow_wrong_or_down_gives_no_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(http("200 OK", ALL)) as url:
        assert parse_jwks(await JwksUrl(url)() or b"").keys() == {"r1", "e1", "d1"}
        async with served(http("302 Found", b"", f"Location: {url}")) as elsewhere:
            with pytest.raises(Unavailable, match="answered 302; redirects are not followed"):
                await JwksUrl(elsewhere)()
    async with served(http("200 OK", b" " * (DOCUMENT_BYTES_MAX + 1))) as url:
        with pytest.raises(Unavailable, match="sends more than"):
            await JwksUrl(url)()
    async with served(b"SSH-2.0-OpenSSH\r\n") as url:
        with pytest.raises(Unavailable, match="does not speak HTTP"):
            await JwksUrl(url)()
    monkeypatch.setattr(jwks_module, "FETCH_SECONDS", 0.2)
    async with served(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", then_hang=True) as url:
        with pytest.raises(Unavailable, match="did not answer within"):
            await JwksUrl(url)()
    with pytest.raises(Unavailable, match="cannot be reached"):
        await JwksUrl(url)()


def test_a_url_must_be_encrypted_unless_it_is_of_this_machine() -> None:
    for wrong in ("http://issuer.example/keys", "ftp://127.0.0.1/keys", "https://me:pass@issuer.example/", "https://"):
        with pytest.raises(Invalid) as raised:
            JwksUrl(wrong)
        assert "pass@" not in raised.value.message
    JwksUrl("https://issuer.example/keys")
    JwksUrl("http://[::1]:8080/keys")
    JwksUrl("http://issuer.example/keys", allow_plain=True)


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_an_address_that_fails_often_waits_and_is_then_refused_and_right_credentials_still_count() -> None:
    async with world() as here:
        known = here.token()
        await here.shows(known)
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                await here.shows("a.b.c")
        waits = []
        for _ in range(17):
            asking = asyncio.get_running_loop().create_task(here.shows("a.b.c"))
            waited = 0.0
            while not asking.done():
                for _ in range(50):
                    await asyncio.sleep(0)
                if not asking.done():
                    here.clock.advance(0.1)
                    waited += 0.1
            waits.append(round(waited, 1))
            with pytest.raises(Unauthenticated):
                asking.result()
        assert waits[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0] and max(waits) < 2.2
        with pytest.raises(Full, match="wrong credentials too often"):
            await here.shows(here.token(n=1))
        assert (await here.shows(known)).principal.name == "alice"  # remembered: it is cheap to check
        assert (await here.shows(here.token(n=2), "203.0.113.9")).principal.name == "alice"
        here.clock.advance(30.0)
        assert (await here.shows(here.token(n=3))).principal.name == "alice"


class SlowCheck:
    """Holds every check of a signature in its thread until the test releases it, and counts them."""

    def __init__(self, here: World) -> None:
        self.running, self.most, self.release = 0, 0, threading.Event()
        self._lock = threading.Lock()
        assert here.authentication._tokens is not None
        self._verify = here.authentication._tokens.verify
        here.authentication._tokens.verify = self  # type: ignore[method-assign, assignment]

    def __call__(self, *arguments: Any) -> Identity:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.release.wait(60)
        with self._lock:
            self.running -= 1
        return self._verify(*arguments)


@asynccontextmanager
async def slow_checks(here: World) -> AsyncIterator[SlowCheck]:
    check = SlowCheck(here)
    try:
        yield check
    finally:
        check.release.set()


async def test_strangers_get_bounded_processor_time_and_places_and_others_still_get_in() -> None:
    async with world() as here, slow_checks(here) as check:
        known = here.token()
        check.release.set()
        await here.shows(known)
        check.release.clear()
        check.most = 0
        forged = [here.token(OTHER_RSA_KEY, n=number) for number in range(WAITING_PER_ADDRESS_MAX + 1)]
        asked = [asyncio.ensure_future(here.shows(one)) for one in forged]
        with pytest.raises(Full, match="too many callers"):
            await asked.pop()  # one address has no more places
        await until(lambda: check.running >= CHECKS_AT_ONCE)
        other = asyncio.ensure_future(here.shows(here.token(n=-1), "203.0.113.9"))
        assert (await here.shows(known)).principal.name == "alice"  # nobody waits who was known before
        await asyncio.sleep(0)
        assert len(here.authentication._waiting) == 2
        check.release.set()
        assert (await other).principal.name == "alice"
        told = await _ended(here, asked)
        assert all(isinstance(one, Unauthenticated | Full) for one in told)
        assert check.most == CHECKS_AT_ONCE
        assert not here.authentication._waiting


async def test_all_addresses_together_have_bounded_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication_module, "WAITING_MAX", 3)
    async with world() as here, slow_checks(here) as check:
        asked = [asyncio.ensure_future(here.shows(here.token(n=n), f"203.0.113.{n}")) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Full, match="too many callers"):
            await here.shows(here.token(n=3), "203.0.113.3")
        leaving = asked.pop()
        leaving.cancel()
        await asyncio.wait([leaving])
        asked.append(asyncio.ensure_future(here.shows(here.token(n=4), "203.0.113.4")))
        await asyncio.sleep(0)
        check.release.set()
        assert [(await one).principal.name for one in asked] == ["alice"] * 3


async def _ended(here: World, asked: list[asyncio.Future[Identity]]) -> list[Any]:
    """Advance the time by which answers are held back until all have come, and return them."""
    async with asyncio.timeout(60):
        while not all(one.done() for one in asked):
            await asyncio.sleep(0.001)
            here.clock.advance(1.0)
    return await asyncio.gather(*asked, return_exceptions=True)


async def test_a_slow_jwks_does_not_hold_up_those_whose_keys_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwks_module, "WAIT_SECONDS", 0.2)
    async with world() as here:
        hanging = asyncio.Event()

        async def hang() -> bytes | None:
            await hanging.wait()
            return None

        here.jwks._fetch = hang
        here.clock.advance(MISSING_S)
        unknown = [asyncio.ensure_future(here.shows(here.token(kid=f"u{n}"), f"203.0.113.{n}")) for n in range(5)]
        await asyncio.sleep(0)
        assert (await here.shows(here.token(), "192.0.2.9")).principal.name == "alice"
        assert not any(one.done() for one in unknown)
        told = await asyncio.wait_for(asyncio.gather(*unknown, return_exceptions=True), 30)
        assert all(isinstance(one, Unauthenticated) for one in told)  # they do not wait for ever
        hanging.set()
