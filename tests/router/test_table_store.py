"""The stored tables: what was saved comes back, what is broken is reported and ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.errors import BadInput
from router.model import EndpointIntent, IntentTable, ModelIntent
from router.shell.table_store import FILE_NAME, TableStore

TABLE = IntentTable(
    source="controller",
    epoch=3,
    revision=14,
    share=0.5,
    models=(ModelIntent(name="m", aliases=("n",)),),
    endpoints=(EndpointIntent(id="m-full-1", url="http://127.0.0.1:8000", model="m", limit=4, intent="draining"),),
)


def test_saved_tables_come_back_whole_and_nothing_else_is_left_in_the_folder(tmp_path: Path) -> None:
    store = TableStore(tmp_path / "state")
    store.prepare()
    assert store.load() == ((), None)
    assert store.save([TABLE, IntentTable(source="other")]) is None
    assert store.load() == ((TABLE, IntentTable(source="other")), None)
    assert [p.name for p in (tmp_path / "state").iterdir()] == [FILE_NAME]


def test_a_later_save_replaces_an_earlier_one(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    store.save([TABLE])
    store.save([])
    assert store.load() == ((), None)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "truncated"),
        (b'{"version": 1, "tables": [{"sou', "truncated"),
        (b'{"version": 2, "tables": []}', "version 2; allowed: 1"),
        (b'{"version": 1, "tables": [{"source": "s", "version": 9}]}', "Invalid enum value 9"),
        (
            b'{"version": 1, "tables": [{"source":"s","endpoints":[{"id":"a","url":"http://h:1","model":"x"}]}]}',
            "'x' is not one",
        ),
    ],
)
def test_a_corrupt_file_is_reported_and_ignored(tmp_path: Path, content: bytes, says: str) -> None:
    store = TableStore(tmp_path)
    store.path.write_bytes(content)
    tables, problem = store.load()
    assert tables == ()
    assert problem is not None
    assert str(store.path) in problem
    assert says in problem


def test_a_folder_that_is_a_file_is_refused_at_the_start_and_reported_later(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    store = TableStore(tmp_path / "state")
    with pytest.raises(BadInput, match=r"--state-dir: .* cannot be written to"):
        store.prepare()
    problem = store.save([TABLE])
    assert problem is not None
    assert "router-tables.json" in problem
