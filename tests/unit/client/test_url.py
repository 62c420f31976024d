"""A URL says everything about a connection, is checked when it is read, and never gives its password away."""

import ssl
import traceback
from datetime import timedelta
from pathlib import Path

import pytest

from redrive.client.url import TLS, BrokerURL, Host
from redrive.errors import ConfigurationError, InvalidURL
from redrive.protocol.handshake import ExternalAuth, PlainAuth, Tuning
from tests.support.tls import TLSFiles, make_certificates

parse = BrokerURL.parse


# Hosts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("amqp://rabbit", ["rabbit:5672"]),
        ("amqp://rabbit/", ["rabbit:5672"]),
        ("amqps://rabbit/", ["rabbit:5671"]),
        ("amqp://rabbit:5673/", ["rabbit:5673"]),
        ("amqp://rabbit:/", ["rabbit:5672"]),
        ("amqp://", ["localhost:5672"]),
        ("amqp:///orders", ["localhost:5672"]),
        ("amqp://:5673/", ["localhost:5673"]),
        ("amqp://me:secret@/", ["localhost:5672"]),
        ("amqp://127.0.0.1/", ["127.0.0.1:5672"]),
        ("amqp://[::1]/", ["[::1]:5672"]),
        ("amqp://[::1]:5673/", ["[::1]:5673"]),
        ("amqp://me:secret@[fe80::1%25eth0]:5673/", ["[fe80::1%eth0]:5673"]),
        ("amqp://one,two:5673,three/", ["one:5672", "two:5673", "three:5672"]),
        ("amqp://one,[::1]:5673/", ["one:5672", "[::1]:5673"]),
        ("amqp://[::1]:5673,[::2]/", ["[::1]:5673", "[::2]:5672"]),
        ("amqp://Rabbit.Example.COM/", ["Rabbit.Example.COM:5672"]),
    ],
)
def test_a_url_names_one_or_more_hosts(url: str, hosts: list[str]) -> None:
    assert [str(host) for host in parse(url).hosts] == hosts


def test_an_ipv6_address_is_kept_without_its_brackets() -> None:
    assert parse("amqp://[::1]:5673/").hosts == (Host("::1", 5673),)


@pytest.mark.parametrize("port", ["0", "65536", "-1", "5672x", "٣٤", "²", "99999999999999999999"])
def test_a_port_outside_of_1_to_65535_is_refused(port: str) -> None:
    with pytest.raises(InvalidURL, match="port"):
        parse(f"amqp://rabbit:{port}/")


@pytest.mark.parametrize("hosts", ["one,", ",one", "one,,two", "one,:5673"])
def test_an_empty_place_among_several_hosts_is_a_slip_and_not_localhost(hosts: str) -> None:
    with pytest.raises(InvalidURL, match="comma"):
        parse(f"amqp://{hosts}/")


@pytest.mark.parametrize("host", ["[::1", "::1]", "[::1]x", "::1", "fe80::1:5672"])
def test_an_ipv6_address_needs_both_brackets(host: str) -> None:
    with pytest.raises(InvalidURL, match="brackets"):
        parse(f"amqp://{host}/")


# Who and where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("userinfo", "credentials"),
    [
        ("", PlainAuth("guest", "guest")),
        ("me:secret@", PlainAuth("me", "secret")),
        ("me@", PlainAuth("me", "")),
        ("me:@", PlainAuth("me", "")),
        (":secret@", PlainAuth("", "secret")),
        ("m%40e:s%3Ae%2Fc%3Fr%23%25t@", PlainAuth("m@e", "s:e/c?r#%t")),
        ("me:se:cret@", PlainAuth("me", "se:cret")),
        ("me:se@cret@", PlainAuth("me", "se@cret")),
        ("me:gr%C3%BCn@", PlainAuth("me", "grün")),
        ("me:a+b@", PlainAuth("me", "a+b")),
        ("me:a[b@", PlainAuth("me", "a[b")),
    ],
)
def test_user_and_password_come_decoded(userinfo: str, credentials: PlainAuth) -> None:
    assert parse(f"amqp://{userinfo}rabbit/").credentials == credentials


@pytest.mark.parametrize(
    ("path", "virtual_host"),
    [("", "/"), ("/", "/"), ("/orders", "orders"), ("/%2F", "/"), ("/a%2Fb", "a/b"), ("/%20", " "), ("/a%40b", "a@b")],
)
def test_the_path_is_the_virtual_host(path: str, virtual_host: str) -> None:
    assert parse(f"amqp://rabbit{path}").virtual_host == virtual_host


def test_a_bare_slash_within_a_virtual_host_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidURL, match="write a slash within the name as %2F"):
        parse("amqp://rabbit/a/b")


@pytest.mark.parametrize("url", ["rabbit", "http://rabbit/", "amqp:rabbit", "", "amqp", "//rabbit/", "redis://rabbit"])
def test_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(InvalidURL):
        parse(url)


def test_the_scheme_may_be_in_capitals() -> None:
    assert parse("AMQPS://rabbit/").tls == TLS()


def test_a_refused_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError):
        parse("http://rabbit/")


# Options ----------------------------------------------------------------------------------------------


def test_without_options_the_defaults_hold() -> None:
    url = parse("amqp://rabbit/")

    assert url.tuning == Tuning(channel_max=2047, frame_max=131072, heartbeat=20)
    assert url.connection_timeout == timedelta(seconds=10)
    assert url.tls is None


@pytest.mark.parametrize(
    ("query", "tuning"),
    [
        ("heartbeat=0", Tuning(2047, 131072, 0)),
        ("heartbeat=65535", Tuning(2047, 131072, 65535)),
        ("channel_max=1", Tuning(1, 131072, 20)),
        ("channel_max=65535", Tuning(65535, 131072, 20)),
        ("frame_max=8192", Tuning(2047, 8192, 20)),
        ("heartbeat=5&frame_max=16384&channel_max=10", Tuning(10, 16384, 5)),
    ],
)
def test_limits_of_the_connection_are_options(query: str, tuning: Tuning) -> None:
    assert parse(f"amqp://rabbit/?{query}").tuning == tuning


def test_the_connection_timeout_is_in_milliseconds() -> None:
    assert parse("amqp://rabbit?connection_timeout=250").connection_timeout == timedelta(milliseconds=250)


@pytest.mark.parametrize(
    "option",
    [
        "heartbeat=-1",
        "heartbeat=65536",
        "heartbeat=1.5",
        "heartbeat=",
        "heartbeat",
        "channel_max=0",
        "channel_max=65536",
        "frame_max=8191",
        "frame_max=2147483648",
        "connection_timeout=0",
        "connection_timeout=soon",
    ],
)
def test_a_number_outside_of_its_range_is_refused_with_the_range(option: str) -> None:
    with pytest.raises(InvalidURL, match=rf"option {option.split('=')[0]}=.* want a number from \d+ to \d+"):
        parse(f"amqp://rabbit/?{option}")


def test_a_digit_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(InvalidURL):
        parse("amqp://rabbit/?heartbeat=²")


@pytest.mark.parametrize(("value", "credentials"), [("external", ExternalAuth()), ("EXTERNAL", ExternalAuth())])
def test_external_authentication_needs_no_user(value: str, credentials: ExternalAuth) -> None:
    assert parse(f"amqps://rabbit/?auth_mechanism={value}").credentials == credentials


def test_plain_authentication_can_be_asked_for() -> None:
    assert parse("amqp://me:secret@rabbit/?auth_mechanism=plain").credentials == PlainAuth("me", "secret")


def test_an_unknown_mechanism_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidURL, match="want plain or external"):
        parse("amqp://rabbit/?auth_mechanism=gssapi")


@pytest.mark.parametrize(
    ("slip", "meant"), [("hartbeat", "heartbeat"), ("cacert", "cacertfile"), ("frame-max", "frame_max")]
)
def test_a_slip_in_an_option_is_answered_with_the_one_that_was_meant(slip: str, meant: str) -> None:
    with pytest.raises(InvalidURL, match=f"unknown option '{slip}' in a broker URL, did you mean {meant}?"):
        parse(f"amqps://rabbit/?{slip}=1")


def test_an_option_like_no_other_is_answered_with_all_there_are() -> None:
    with pytest.raises(InvalidURL, match=r"known are auth_mechanism, channel_max, .*heartbeat.*verify"):
        parse("amqp://rabbit/?zzz=1")


# TLS --------------------------------------------------------------------------------------------------


def test_amqps_verifies_the_broker_unless_told_otherwise() -> None:
    assert parse("amqps://rabbit/").tls == TLS(None, None, None, verify=True, server_name=None)


def test_every_tls_option_is_read() -> None:
    query = (
        "cacertfile=/ca.pem&certfile=/me.pem&keyfile=/me.key&verify=verify_none&server_name_indication=rabbit.example"
    )

    assert parse(f"amqps://10.0.0.1/?{query}").tls == TLS("/ca.pem", "/me.pem", "/me.key", False, "rabbit.example")


@pytest.mark.parametrize("option", ["cacertfile", "certfile", "keyfile", "verify", "server_name_indication"])
def test_a_tls_option_without_tls_is_refused_instead_of_ignored(option: str) -> None:
    with pytest.raises(InvalidURL, match=f"option '{option}' needs TLS: begin the broker URL with amqps://"):
        parse(f"amqp://rabbit/?{option}=x")


def test_verify_takes_rabbitmqs_words_only() -> None:
    with pytest.raises(InvalidURL, match="want verify_peer or verify_none"):
        parse("amqps://rabbit/?verify=false")


def test_a_context_verifies_certificate_and_name_by_default() -> None:
    context = TLS().context()

    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_a_context_that_verifies_nothing_must_be_asked_for() -> None:
    context = TLS(verify=False).context()

    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TLSFiles:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_a_context_trusts_the_given_authority_alone(files: TLSFiles) -> None:
    [trusted] = TLS(cacertfile=str(files.ca)).context().get_ca_certs()

    assert trusted["subject"] == ((("commonName", "Redrive throwaway authority"),),)


def test_a_context_can_show_a_certificate_of_its_own(files: TLSFiles) -> None:
    TLS(certfile=str(files.client_certificate), keyfile=str(files.client_key)).context()


@pytest.mark.parametrize("option", ["cacertfile", "certfile"])
def test_a_file_that_is_not_there_is_named_as_a_fault_of_the_url(option: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidURL, match="TLS files of the broker URL cannot be used"):
        TLS(**{option: str(tmp_path / "missing.pem")}).context()  # type: ignore[arg-type]


def test_a_file_that_is_no_certificate_is_named_as_a_fault_of_the_url(tmp_path: Path) -> None:
    (tmp_path / "not.pem").write_text("hello")

    with pytest.raises(InvalidURL, match="TLS files of the broker URL cannot be used"):
        TLS(cacertfile=str(tmp_path / "not.pem")).context()


# Secrets ----------------------------------------------------------------------------------------------

SECRET = "s3cret"


def test_the_url_as_it_is_logged_has_no_password() -> None:
    assert str(parse(f"amqps://me:{SECRET}@one,two:5673/orders?heartbeat=5")) == "amqps://me@one:5671,two:5673/orders"


def test_the_default_virtual_host_is_logged_as_a_slash() -> None:
    assert str(parse("amqps://rabbit/?auth_mechanism=external")) == "amqps://rabbit:5671/"


def test_the_repr_of_a_url_has_no_password() -> None:
    assert SECRET not in repr(parse(f"amqp://me:{SECRET}@rabbit/"))


@pytest.mark.parametrize(
    "url",
    [
        f"http://me:{SECRET}@rabbit/",
        f"amqp://me:{SECRET}@rabbit:port/",
        f"amqp://me:{SECRET}@[::1/",
        f"amqp://me:{SECRET}@rabbit:²/",
        f"amqp://me:{SECRET}@rabbit/?hartbeat=1",
        f"amqp://me:{SECRET}@rabbit/?heartbeat=x",
        f"amqp://me:{SECRET}@rabbit/a/b",
        f"amqp://me:{SECRET}",
        f"amqp://me:a/{SECRET}@rabbit/",
        f"amqp://me:{SECRET}/a@rabbit/",
        f"amqp://me:a?{SECRET}@rabbit/",
        f"amqp://me:a?{SECRET}=1@rabbit/",
        f"amqp://me:{SECRET}?a@rabbit/",
        f"amqp://me:a#{SECRET}@rabbit/",
        f"amqp://me:{SECRET}#a@rabbit/",
        f"amqp://me:a@b/{SECRET}@rabbit/",
        f"me:{SECRET}@rabbit",
        f"amqp:me:{SECRET}@rabbit",
        f"amqp:/me:{SECRET}@rabbit",
        f"amq://me:{SECRET}",
    ],
)
def test_no_error_about_a_url_shows_its_password(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        parse(url)

    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("letter", ["/", "?", "#"])
def test_a_bare_delimiter_within_a_password_is_answered_with_how_to_write_it(letter: str) -> None:
    with pytest.raises(InvalidURL, match="%2F"):
        parse(f"amqp://me:a{letter}b@rabbit/")


def test_what_follows_a_hash_is_refused_instead_of_ignored() -> None:
    with pytest.raises(InvalidURL, match="#"):
        parse("amqp://rabbit/orders#1")
