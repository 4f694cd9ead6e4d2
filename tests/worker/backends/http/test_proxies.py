"""Which proxy the variables of the environment select for a server."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_protocol.core.errors import ConfigError
from orch_worker.backends.http.proxies import ignored_entries, proxy_of

REMOTE = "https://api.example.com/v1"
PROXY = {"HTTPS_PROXY": "http://proxy:3128"}


def address(env: dict[str, str], url: str = REMOTE, *, socks: bool = True) -> str:
    """Return the address of the proxy for `url`."""
    return proxy_of(url, env, lambda: socks).url


@pytest.mark.parametrize(
    ("env", "url", "proxy"),
    [
        ({}, REMOTE, ""),
        (PROXY, REMOTE, "http://proxy:3128"),
        (PROXY, "http://api.example.com", ""),
        ({"HTTP_PROXY": "http://a:1"}, "http://api.example.com", "http://a:1"),
        ({"HTTP_PROXY": "http://a:1"}, REMOTE, ""),
        ({"http_proxy": "http://a:1", "HTTP_PROXY": "http://b:1"}, "http://api.example.com", "http://a:1"),
        ({"https_proxy": "", "HTTPS_PROXY": "http://b:1"}, REMOTE, ""),
        ({"ALL_PROXY": "http://c:1"}, REMOTE, "http://c:1"),
        ({"all_proxy": "http://c:1", **PROXY}, REMOTE, "http://proxy:3128"),
        ({"HTTPS_PROXY": "  ", "ALL_PROXY": "http://c:1"}, REMOTE, "http://c:1"),
        ({"HTTPS_PROXY": "proxy:3128"}, REMOTE, "http://proxy:3128"),
        ({"HTTPS_PROXY": " http://proxy:3128/ "}, REMOTE, "http://proxy:3128"),
        ({"HTTPS_PROXY": "https://proxy"}, REMOTE, "https://proxy"),
        ({"HTTPS_PROXY": "http://me:p%40ss@proxy:3128"}, REMOTE, "http://me:p%40ss@proxy:3128"),
        ({"HTTPS_PROXY": "http://[fd00::1]:3128"}, REMOTE, "http://[fd00::1]:3128"),
        ({"ALL_PROXY": "socks5://s:1080"}, REMOTE, "socks5://s:1080"),
        ({"ALL_PROXY": "socks5h://s:1080"}, REMOTE, "socks5h://s:1080"),
        ({"ALL_PROXY": "socks://s:1080"}, REMOTE, "socks5://s:1080"),
        ({"ALL_PROXY": "SOCKS5://s:1080"}, REMOTE, "socks5://s:1080"),
        ({"HTTP_PROXY": "http://a:1", "REQUEST_METHOD": "GET"}, "http://api.example.com", ""),
        ({"http_proxy": "http://a:1", "REQUEST_METHOD": "GET"}, "http://api.example.com", "http://a:1"),
    ],
)
def test_variable_of_the_scheme_selects_the_proxy(env: dict[str, str], url: str, proxy: str) -> None:
    """The variable of the scheme has priority over ALL_PROXY, and lower case over upper case."""
    assert address(env, url) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        ("*", "api.example.com", True),
        ("example.com", "api.example.com", True),
        ("example.com", "example.com", True),
        (".example.com", "api.example.com", True),
        (".example.com", "example.com", True),
        ("*.example.com", "api.example.com", True),
        ("*.example.com", "example.com", False),
        ("ample.com", "example.com", False),
        ("EXAMPLE.com", "Api.Example.COM", True),
        ("example.com.", "example.com", True),
        ("example.com:443", "example.com", True),
        ("example.com:8443", "example.com", False),
        ("example.com:8443", "example.com:8443", True),
        ("https://example.com", "example.com", True),
        ("http://example.com", "example.com", False),
        ("a.com, example.com", "example.com", True),
        ("a.com example.com", "example.com", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.7/8", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3:443", "10.1.2.3", True),
        ("10.0.0.0/8", "ten.example.com", False),
        ("fd07:b51a:cc66:f0::/64", "[fd07:b51a:cc66:f0::5]", True),
        ("[fd07:b51a:cc66:f0::]/64", "[fd07:b51a:cc66:f0::5]", True),
        ("fd07:b51a:cc66:f0::/64", "[fd08::1]", False),
        ("fd08::1", "[fd08:0::1]", True),
        ("[fd08::1]", "[fd08::1]", True),
        ("[fd08::1]:443", "[fd08::1]", True),
        ("[fd08::1]:80", "[fd08::1]", False),
        ("", "example.com", False),
        (" , ,", "example.com", False),
    ],
)
def test_no_proxy_entry_applies_to_hosts_addresses_and_networks(no_proxy: str, host: str, direct: bool) -> None:
    """An entry is a host with its subdomains, an address or a network of either family, also with a port."""
    for name in ("NO_PROXY", "no_proxy"):
        found = proxy_of(f"https://{host}/v1", {**PROXY, name: no_proxy})
        assert found.url == ("" if direct else "http://proxy:3128")
        assert ignored_entries({**PROXY, name: no_proxy}) == ()


@pytest.mark.parametrize(
    "entry", ["fd07:zz::/64", "10.0.0.0/99", "[::1x", "::1]x", "host:port", "host:99999", "ftp://x", "[x]:1"]
)
def test_unreadable_entry_is_ignored_and_named(entry: str) -> None:
    """An entry that cannot be read is ignored with a text that names it, and the other entries apply."""
    env = {**PROXY, "NO_PROXY": f"{entry},other.example"}
    assert address(env) == "http://proxy:3128"
    [text] = ignored_entries(env)
    assert text.startswith(f"NO_PROXY contains {entry!r}")
    assert ignored_entries({"NO_PROXY": entry}) == ()  # without a proxy, NO_PROXY does not matter
    assert address({**PROXY, "NO_PROXY": f"{entry},api.example.com"}) == ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1:8080",
        "127.8.9.1",
        "[::1]:1",
        "[::ffff:127.0.0.1]",
        "LOCALHOST",
        "0.0.0.0:11434",
        "[::]:1",
        "localhost.:1",
        "llm.localhost:1",
    ],
)
@pytest.mark.parametrize("proxy", ["http://proxy:1", "socks5://127.0.0.1:9", "nonsense://", "http://[::1"])
def test_server_on_this_machine_uses_no_proxy(host: str, proxy: str) -> None:
    """A loopback server is reached directly for all values of the variables."""
    env = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), proxy) | {"NO_PROXY": "[::bad"}
    assert proxy_of(f"http://{host}/v1", env, lambda: False).url == ""


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("socks4://s:1", "the scheme 'socks4' is not supported"),
        ("ftp://s:1", "the scheme 'ftp' is not supported"),
        ("http://", "it has no host name"),
        ("http://:3128", "it has no host name"),
        ("http://proxy:99999", "out of range"),
        ("http://proxy:abc", "could not be cast"),
        ("http://proxy:0", "the port is 0"),
        ("http://pro xy:1", "it contains a blank"),
        ("http://[::1", "Invalid IPv6"),
    ],
)
def test_unusable_proxy_names_its_variable(value: str, problem: str) -> None:
    """The error for an address that is not usable names the variable and the problem."""
    for name in ("HTTPS_PROXY", "all_proxy"):
        with pytest.raises(ConfigError, match=f"^{name} is not the address of a proxy: .*{problem}"):
            proxy_of(REMOTE, {name: value})


@pytest.mark.parametrize(
    "value",
    ["socks4://me:hunter22@s:1", "http://me:hunter22@proxy:99999", "me:hunter22@proxy:0", "http://me:a/hunter22@p:x"],
)
def test_password_of_a_proxy_is_not_shown(value: str) -> None:
    """The error and the description of a proxy contain no password."""
    with pytest.raises(ConfigError) as caught:
        proxy_of(REMOTE, {"ALL_PROXY": value})
    assert "hunter22" not in str(caught.value)
    assert "hunter22" not in str(proxy_of(REMOTE, {"ALL_PROXY": "http://me:hunter22@proxy:1"}))


def test_socks_proxy_without_its_package_names_extra_and_variable() -> None:
    """Without the package, the error names the extra and the variable, and an entry of NO_PROXY helps."""
    env = {"ALL_PROXY": "socks5h://me:hunter22@s:1080"}
    with pytest.raises(ConfigError, match=r"^ALL_PROXY is a SOCKS proxy \(socks5h://s:1080\).*orch-agents\[socks\]"):
        address(env, socks=False)
    assert address({**env, "NO_PROXY": "example.com"}, socks=False) == ""


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_value_gives_a_proxy_or_an_error_of_the_configuration(proxy: str, no_proxy: str) -> None:
    """No value of the variables raises an error other than ConfigError."""
    with contextlib.suppress(ConfigError):
        found = proxy_of(REMOTE, {"HTTPS_PROXY": proxy, "NO_PROXY": no_proxy})
        assert found.url == "" or "://" in found.url
