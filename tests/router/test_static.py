"""The table of a file: messages name file, field, value and what is allowed; a broken new file changes nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from router.core.dispatcher import Dispatcher
from router.errors import BadTable
from router.model import IntentTable, ModelIntent
from router.shell.discovery.document import DOCUMENT_BYTES_MAX, parse_document
from router.shell.discovery.static import StaticTable, read_table, successor

EXAMPLE = Path(__file__).parents[2] / "deploy" / "examples" / "router.yaml"

GOOD = """\
models:
  - name: m
endpoints:
  - {id: a, url: "http://127.0.0.1:1", model: m, limit: 2}
"""


def dispatcher() -> Dispatcher:
    return Dispatcher(router="r", boot="b", random=lambda: 0.5, now=0.0)


def test_the_packaged_example_is_valid() -> None:
    table = read_table(EXAMPLE)
    assert (table.source, [e.limit for e in table.endpoints]) == ("router.yaml", [16, 6])


SAME = [
    GOOD,
    """{"models": [{"name": "m"}],
        "endpoints": [{"id": "a", "url": "http://127.0.0.1:1", "model": "m", "limit": 2}]}""",
    """{models: [{name: m}], endpoints: [{id: a, url: "http://127.0.0.1:1", model: m, limit: 2}]}""",
    f"source: f.yaml\nversion: 1\nrevision: 0\n{GOOD}",
]


@pytest.mark.parametrize("text", SAME)
def test_yaml_and_json_give_the_same_table(text: str) -> None:
    table = parse_document(text.encode(), "f.yaml")
    assert table == parse_document(GOOD.encode(), "f.yaml")
    assert table.source == "f.yaml"


REFUSED: list[tuple[str, list[str]]] = [
    ("", ["f.yaml: holds nothing; allowed: a mapping with `models` and `endpoints`"]),
    ("- 1", ["f.yaml: holds list; allowed: a mapping"]),
    ("models:\n  - name: [m\nendpoints: []", ["f.yaml: line 3: not YAML: "]),
    ("a: b: c", ["f.yaml: line 1: not YAML: mapping values are not allowed"]),
    ('{"models": [],\n "endpoints": [}', ["f.yaml: line 2: JSON is malformed"]),
    ("day: 2024-13-45", ["f.yaml: not YAML: month must be in 1..12"]),
    ("[" * 10_000, ["f.yaml: ", "not YAML"]),
    ("version: 2", ["f.yaml: `version`: 2; allowed: 1"]),
    ("share: 1.5", ["f.yaml: `share`: 1.5; expected float <= 1.0"]),
    ("share: .nan", ["f.yaml: `share`: nan; expected a finite number"]),
    ("models: m", ["f.yaml: `models`: 'm'; expected array, got str"]),
    ("endpionts: []", ["f.yaml: `endpionts`: []: unknown field; did you mean `endpoints`?"]),
    ("zzz: 1", ["`zzz`: 1: unknown field; allowed: source, version, epoch, revision, share, models, endpoints"]),
    (
        "models: [{name: m, routing: {timeouts: {conect_s: 1}}}]",
        ["`models[0].routing.timeouts.conect_s`: 1: unknown field; did you mean `connect_s`?"],
    ),
    ("models: [{name: m, slo: {queue_s: 0}}]", ["`models[0].slo.queue_s`: 0; expected float > 0.0"]),
    (
        "models: [{name: m, routing: {policy: random}}]",
        ["`models[0].routing.policy`: 'random'; allowed: least-load, prefix, round-robin, session"],
    ),
    ("models: [{name: m}, {name: m}]", ["f.yaml: `models[1]`: the name 'm' already belongs to 'm'"]),
    (GOOD.replace("id: a", "id: 1"), ["`endpoints[0].id`: 1; expected str, got int"]),
    (GOOD.replace("id: a, ", ""), ["`endpoints[0].id`: missing; it has no default"]),
    (GOOD.replace("limit: 2", "limit: two"), ["`endpoints[0].limit`: 'two'; expected int, got str"]),
    (
        GOOD.replace("limit: 2", "intent: activ"),
        ["`endpoints[0].intent`: 'activ'; allowed: active, draining, standby"],
    ),
    (GOOD.replace("limit: 2", "capacity: .inf"), ["`endpoints[0].capacity`: inf; expected a finite number"]),
    (GOOD.replace("model: m,", "model: n,"), ["`endpoints[0].model`: 'n' is not one of the table's models: ['m']"]),
    (
        GOOD.replace("http:", "https:"),
        ["`endpoints[0].url`: 'https://127.0.0.1:1' is not of the form http://HOST:PORT"],
    ),
    (
        GOOD.replace("limit: 2", "limit: 0").replace("name: m", "nmae: m"),
        [
            "`models[0].nmae`: 'm': unknown field; did you mean `name`?",
            "`models[0].name`: missing",
            "`endpoints[0].limit`: 0; expected int >= 1",
        ],
    ),
]


@pytest.mark.parametrize(("text", "messages"), REFUSED)
def test_a_problem_is_named_with_file_field_value_and_what_is_allowed(text: str, messages: list[str]) -> None:
    with pytest.raises(BadTable) as caught:
        parse_document(text.encode(), "f.yaml")
    said = str(caught.value)
    assert said.startswith("f.yaml: ")
    assert "\n" not in said
    for message in messages:
        assert message in said


def test_many_problems_are_counted_and_not_all_printed() -> None:
    text = "\n".join(f"field{number}: 1" for number in range(50))
    with pytest.raises(BadTable, match=r"; and 30 more$"):
        parse_document(text.encode(), "f.yaml")


def test_a_file_beyond_the_bound_is_refused_unread() -> None:
    with pytest.raises(BadTable, match="allowed: at most"):
        parse_document(b"#" * (DOCUMENT_BYTES_MAX + 1), "f.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadTable, match=r"absent\.yaml: cannot be read: No such file or directory"):
        read_table(tmp_path / "absent.yaml")


def test_revisions_are_counted_for_a_file_that_has_none() -> None:
    first = IntentTable(source="f")
    second = IntentTable(source="f", models=(ModelIntent(name="m"),))
    assert successor(first, None) is first
    assert successor(first, first) is first
    third = successor(second, first)
    assert (third.epoch, third.revision, third.models) == (0, 1, second.models)
    assert successor(second, third) is third
    newer = IntentTable(source="f", epoch=2, revision=7)
    assert successor(newer, third) is newer
    older = IntentTable(source="f", epoch=1, revision=9)
    assert (successor(older, newer).epoch, successor(older, newer).revision) == (2, 7)


def test_a_reload_applies_what_changed_and_a_broken_file_keeps_the_last_good_table(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(GOOD)
    holder = dispatcher()
    static = StaticTable(path, holder)
    static.load(0.0)
    assert [e.limit for e in holder.endpoints.values()] == [2]
    path.write_text(GOOD.replace("limit: 2", "limit: 3"))
    static.load(1.0)
    assert [e.limit for e in holder.endpoints.values()] == [3]
    good = holder.tables()
    for broken in ("endpoints: [", GOOD.replace("limit: 2", "limit: none"), "source: another"):
        path.write_text(broken)
        with pytest.raises(BadTable, match=r"router\.yaml: "):
            static.load(2.0)
        assert holder.tables() == good


def test_a_name_that_another_source_owns_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(GOOD)
    holder = dispatcher()
    holder.apply(IntentTable(source="controller", models=(ModelIntent(name="m"),)), 0.0)
    with pytest.raises(BadTable, match=r"router\.yaml: .*'m' belongs to the source 'controller'"):
        StaticTable(path, holder).load(0.0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until it is so."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # what is waited for belongs to the code under test and sets no event
            await asyncio.sleep(0.005)


async def test_a_changed_file_is_seen_and_a_broken_one_is_logged_once(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(GOOD)
    holder = dispatcher()
    static = StaticTable(path, holder, poll_s=0.005)
    static.load(0.0)

    def replace(text: str) -> None:
        """As an editor or a mount does it: another file under the same name."""
        beside = tmp_path / "new"
        beside.write_text(text)
        os.replace(beside, path)

    with capture_logs() as logs:
        watching = asyncio.create_task(static.watch())
        replace(GOOD.replace("limit: 2", "limit: 4"))
        await until(lambda: [e.limit for e in holder.endpoints.values()] == [4])
        replace("models: [")
        await until(lambda: any(line["log_level"] == "error" for line in logs))
        path.unlink()
        await until(lambda: sum(line["log_level"] == "error" for line in logs) == 2)
        looks = static.looks
        await until(lambda: static.looks >= looks + 3)  # at a file that is still missing
        assert sum(line["log_level"] == "error" for line in logs) == 2
        replace(GOOD.replace("limit: 2", "limit: 5"))
        await until(lambda: [e.limit for e in holder.endpoints.values()] == [5])
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
    errors = [line["problem"] for line in logs if line["log_level"] == "error"]
    assert len(errors) == 2
    assert "line 2: not YAML" in errors[0]
    assert "cannot be read" in errors[1]


async def test_sighup_reloads_even_an_unchanged_file(tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(GOOD)
    holder = dispatcher()
    static = StaticTable(path, holder)
    static.load(0.0)
    status = path.stat()
    path.write_text(GOOD.replace("limit: 2", "limit: 7"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    watching = asyncio.create_task(static.watch())
    static.reload_soon()
    await until(lambda: [e.limit for e in holder.endpoints.values()] == [7])
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: tidegate.dev/v1alpha1\nkind: ScalingPolicy\nmetadata: {name: m}\n",
        "kind: 'ScalingPolicy'\n---\nkind: ScalingPolicy\n",
        '{"kind": "ScalingPolicy", "spec": {}}',
        '{\n  "kind" : "ScalingPolicy"}',
    ],
)
def test_a_policy_is_told_from_a_table_and_where_it_belongs(text: str) -> None:
    with pytest.raises(BadTable) as caught:
        parse_document(text.encode(), "p.yaml")
    assert str(caught.value).startswith("p.yaml: `kind`: ScalingPolicy: a policy says how many replicas")
    assert "`tidegate controller --local -f p.yaml`" in str(caught.value)
    assert "allowed here: an intent table" in str(caught.value)


def test_a_share_divides_the_files_own(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("share: 0.5\n" + GOOD.replace("limit: 2", "limit: 40"))
    holder = dispatcher()
    static = StaticTable(path, holder, share=0.25)
    static.load(0.0)
    assert (holder.tables()["t.yaml"].share, holder.endpoints["a"].limit) == (0.125, 5)
    static.load(1.0)
    assert holder.tables()["t.yaml"].revision == 0, "read again, and nothing changed"
