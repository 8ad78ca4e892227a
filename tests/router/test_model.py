"""The URL of an endpoint: which forms are taken, and that nothing else is, least of all what could end a header line."""

from __future__ import annotations

import pytest

from router.errors import BadTable
from router.model import host_and_port


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("http://127.0.0.1:8000/", ("127.0.0.1", 8000)),
        ("http://engine-1.serving_ns.svc.cluster.local.:80", ("engine-1.serving_ns.svc.cluster.local.", 80)),
        ("http://e:65535", ("e", 65535)),
        ("http://[::1]:80", ("::1", 80)),
        ("http://[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
    ],
)
def test_a_url_names_a_host_and_a_port(url: str, place: tuple[str, int]) -> None:
    assert host_and_port(url) == place


@pytest.mark.parametrize(
    "url",
    [
        "http://a\r\nx-evil:1:80",
        "http://a\n:80",
        "http://a:80\n",
        "http://größe:80",
        "http://a:٨",
        "http://a b:80",
        "http://a\x00:80",
        "http://-a:80",
        "http://u@a:80",
        "http://a:80/v1",
        "http://a:80?x",
        "http://a#:80",
        "http://::1:80",
        "http://[::1:80",
        "http://[]:80",
        "http://[g]:80",
        "http://:80",
        "http://a:",
        "http://a:0",
        "http://a:65536",
        "http://a:080000",
        "https://a:80",
        "HTTP://a:80",
        "a:80",
        "",
    ],
)
def test_any_other_is_refused_with_the_form_that_is_allowed(url: str) -> None:
    with pytest.raises(BadTable) as refused:
        host_and_port(url, "there")
    assert str(refused.value) == f"there: {url!r} is not of the form http://HOST:PORT"
