"""Scripts and styles are compressed, and browsers load each version once."""

import re

import pytest

ASSET = re.compile(r'(?:href|src)="(/static/[^"]+)"')


@pytest.fixture
def addresses(shop, client) -> list[str]:
    """The addresses of all assets of the overview."""
    return ASSET.findall(client.get("/").text)


def test_an_asset_is_cached_permanently_under_the_address_on_a_page(client, addresses):
    assert len(addresses) >= 9
    for address in addresses:
        answer = client.get(address)

        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert "set-cookie" not in answer.headers, "one cache may serve all viewers"
        assert answer.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("query", ["", "?v=0123456789ab", "?v="])
def test_an_asset_of_another_version_is_not_cached(shop, client, query):
    answer = client.get(f"/static/dashboard.css{query}")
    again = client.get(
        f"/static/dashboard.css{query}", headers={"If-None-Match": answer.headers["etag"]}
    )

    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")


def test_an_asset_is_compressed_for_clients_that_accept_compression(shop, client, addresses):
    for address in addresses:
        plain = client.get(address, headers={"Accept-Encoding": "identity"})
        small = client.get(address, headers={"Accept-Encoding": "br, gzip"})

        assert "content-encoding" not in plain.headers
        assert small.content == plain.content
        assert int(plain.headers["content-length"]) == len(plain.content)
        if len(plain.content) > 1000:
            assert small.headers["content-encoding"] == "gzip"
            assert int(small.headers["content-length"]) < 0.5 * len(plain.content)
    refused = client.get(addresses[1], headers={"Accept-Encoding": "gzip;q=0, identity"})
    assert "content-encoding" not in refused.headers


@pytest.mark.parametrize(
    "path", ["/static/nothing.css", "/static/", "/static/../guarding.py", "/static/vendor"]
)
def test_a_path_that_names_no_asset_is_not_served(shop, client, path):
    assert client.get(path).status_code == 404


def test_a_page_is_not_compressed_for_a_request_from_another_site(shop, client):
    # An attacker who controls part of a page and sees its size can guess the rest of the page.
    sizes = {}
    for site in ("same-origin", "none", "same-site", "cross-site", None):
        headers = {"Accept-Encoding": "gzip"} | ({"Sec-Fetch-Site": site} if site else {})
        answer = client.get("/runs", headers=headers)
        sizes[site] = answer.headers.get("content-encoding")
        assert "</html>" in answer.text
        assert answer.headers["cache-control"] == "no-store"

    assert sizes == {
        "same-origin": "gzip",
        "none": "gzip",
        "same-site": None,
        "cross-site": None,
        None: None,
    }
