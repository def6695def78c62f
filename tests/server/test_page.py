"""The page's files as they are served. What the page does stands in browser/."""

import re
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[2] / "server" / "static"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/sound.js": ("sound.js", "text/javascript; charset=utf-8"),
}


@pytest.mark.parametrize("path", FILES)
async def test_a_file_is_served_under_its_media_type(client, path):
    name, media_type = FILES[path]
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    assert answer.content == (STATIC / name).read_bytes()
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_file_of_the_folder_is_served():
    assert {path.name for path in STATIC.iterdir()} == {name for name, _ in FILES.values()}


@pytest.mark.parametrize("path", FILES)
async def test_a_client_that_has_a_file_asks_each_time_and_gets_it_only_when_it_changed(client, path):
    first = await client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = await client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (await client.get(path, headers={"If-None-Match": '"other"'})).content == first.content


async def test_the_files_tags_differ(client):
    assert len({(await client.get(path)).headers["etag"] for path in FILES}) == len(FILES)


async def test_the_policy_allows_the_page_nothing_but_its_own_server(client):
    policy = dict(part.split(" ", 1) for part in (await client.get("/")).headers["content-security-policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert {policy.pop(kind) for kind in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy.pop("img-src") == "data:"
    assert policy == dict.fromkeys(("base-uri", "form-action", "frame-ancestors"), "'none'")


@pytest.mark.parametrize("path", FILES)
async def test_a_file_names_no_other_server(client, path):
    text = (await client.get(path)).text.replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)) == []


async def test_the_page_is_no_part_of_the_documented_interface(client):
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert not paths.keys() & FILES.keys()


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/", 405), ("GET", "/index.html", 404), ("GET", "/page.js/", 404)]
)
async def test_anything_else_is_answered_in_the_envelope(client, method, path, status):
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
