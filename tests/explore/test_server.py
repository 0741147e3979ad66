"""The server answers its own page, in any number of tabs, whatever they send."""

from __future__ import annotations

import json
import os
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from longthink.explore import engine, server
from longthink.explore.limits import MOST_VIEWS
from tests.explore.conftest import Seen, Served, ask, held_up, seen

BITS = {"text": "1011001110100101"}


def until(socket: ClientConnection, step: int) -> list[Seen]:
    found: list[Seen] = []
    while not found or found[-1].step < step:
        found.append(seen(socket.recv(timeout=30)))
    return found


def told(socket: ClientConnection) -> dict[str, Any]:
    """The next message in words, past any frames."""
    while True:
        data = socket.recv(timeout=30)
        if isinstance(data, str):
            return json.loads(data)


def test_a_thought_comes_in_frames(served: Served) -> None:
    with served.connect() as socket:
        socket.send(ask(4, "prefix_sums", BITS, 40))
        about = told(socket)
        assert (about["type"], about["id"], about["task"]) == ("ready", 4, "prefix_sums")
        assert about["problems"][0]["truth"] == "1101110100111001"
        found = until(socket, 40)
    assert [one.step for one in found] == list(range(41))
    assert {one.id for one in found} == {4}
    assert found[-1].right == 1
    assert "".join("1" if level >= 128 else "0" for level in found[-1].body) == "1101110100111001"


def test_no_frame_comes_that_was_not_asked_for(served: Served) -> None:
    with served.connect() as socket:
        socket.send(ask(1, "prefix_sums", BITS, 5))
        told(socket)
        assert [one.step for one in until(socket, 5)] == [0, 1, 2, 3, 4, 5]
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.4)
        socket.send('{"type": "more", "id": 99, "until": 50}')  # of another thought
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.2)
        socket.send('{"type": "more", "id": 1, "until": 7}')
        assert [one.step for one in until(socket, 7)] == [6, 7]


def test_the_goal_moves_while_it_thinks(served: Served) -> None:
    maze = ["#####", "#S..#", "###.#", "#G..#", "#####"]
    moved = ["#####", "#S.G#", "###.#", "#...#", "#####"]
    change = {"step": 30, "kind": "problem", "problem": {"text": "\n".join(moved)}}
    with served.connect() as socket:
        socket.send(ask(1, "mazes", {"text": "\n".join(maze)}, 60))
        told(socket)
        assert until(socket, 60)[-1].right == 1
        socket.send(ask(2, "mazes", {"text": "\n".join(maze)}, 80, [change], 30))
        about = told(socket)
        assert [problem["step"] for problem in about["problems"]] == [0, 30]
        found = until(socket, 80)
        assert (found[0].step, found[0].id, found[0].right, found[-1].right) == (30, 2, 0, 1)


def test_a_refused_script_leaves_the_old_one_running(served: Served) -> None:
    with served.connect() as socket:
        socket.send(ask(1, "prefix_sums", BITS, 3))
        told(socket)
        until(socket, 3)
        socket.send(ask(2, "prefix_sums", {"text": "10201"}, 3))
        complaint = told(socket)
        assert (complaint["type"], complaint["id"]) == ("error", 2)
        assert "type bits" in complaint["message"]
        socket.send('{"type": "more", "id": 1, "until": 5}')
        assert [one.step for one in until(socket, 5)] == [4, 5]


def test_twenty_clients_all_finish(served: Served) -> None:
    ends: dict[int, int] = {}

    def client(number: int) -> None:
        with served.connect() as socket:
            socket.send(ask(number, "mazes", {"size": 5, "seed": number}, 30))
            told(socket)
            ends[number] = until(socket, 30)[-1].right

    threads = [threading.Thread(target=client, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ends == dict.fromkeys(range(20), 1)


def test_a_closed_tab_stops_its_computation(served: Served) -> None:
    with served.connect() as socket:
        socket.send(ask(1, "mazes", {"size": 31}, 5000))
        told(socket)
        until(socket, 2)
        assert served.desk.views >= 1
    wait_until_alone(served)
    time.sleep(0.3)  # the step that was being taken
    before = served.desk.pieces
    time.sleep(0.5)
    assert served.desk.pieces == before


def test_a_closed_tab_stops_its_preparations(served: Served) -> None:
    changes = [{"step": step, "kind": "problem", "problem": {"size": 41, "seed": step}} for step in range(1, 200)]
    wait_until_alone(served)
    before = served.desk.pieces
    with served.connect() as socket:
        socket.send(ask(1, "mazes", {"size": 41}, 5, changes))
        while served.desk.pieces < before + 3:
            time.sleep(0.01)
    wait_until_alone(served)
    time.sleep(0.3)  # the piece that was being worked at
    after = served.desk.pieces
    assert after < before + 150
    time.sleep(0.3)
    assert served.desk.pieces == after


def test_slow_preparations_hold_up_nothing_else(served: Served) -> None:
    with held_up(served), served.connect() as socket:
        socket.send(ask(1, "prefix_sums", BITS, 2))
        assert served.get("/api/catalogue")[0] == 200
        assert served.get("/api/engine?fen=rubbish")[0] == 400
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.1)


def test_a_newer_wish_ends_long_preparations(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_PATIENCE", 0.0)
    changes = [{"step": step, "kind": "problem", "problem": {"size": 41, "seed": step}} for step in range(1, 200)]
    with served.connect() as socket:
        socket.send(ask(1, "mazes", {"size": 41}, 5, changes))
        socket.send(ask(2, "prefix_sums", BITS, 2))
        assert told(socket)["id"] == 2
        assert until(socket, 2)[-1].id == 2


def wait_until_alone(served: Served) -> None:
    deadline = time.monotonic() + 10
    while served.desk.views and time.monotonic() < deadline:
        time.sleep(0.05)
    assert served.desk.views == 0


def test_too_many_views_are_told_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until_alone(served)
    assert served.desk.most_views == MOST_VIEWS >= 20
    monkeypatch.setattr(served.desk, "most_views", 1)
    with served.connect() as first:
        first.send(ask(1, "prefix_sums", BITS, 1))
        told(first)
        with served.connect() as second:
            assert "close a tab" in told(second)["message"]
            with pytest.raises(ConnectionClosed):
                second.recv(timeout=5)
        first.send('{"type": "more", "id": 1, "until": 2}')
        assert until(first, 2)[-1].step == 2


messages = st.one_of(
    st.text(max_size=200),
    st.binary(max_size=200),
    st.builds(
        json.dumps,
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["think", "more", "?"]),
                "id": st.integers(-1, 2**33),
                "weights": st.sampled_from(["prefix_sums", "group/ctl-toy", "../..", "/etc"]) | st.text(max_size=20),
                "problem": st.fixed_dictionaries({"text": st.text("01 abd#SG.\n", max_size=40)})
                | st.fixed_dictionaries({"size": st.integers(-5, 10**7), "seed": st.integers(-1, 2**33)}),
                "until": st.integers(-1, 6) | st.floats() | st.integers(5000, 10**30),
            },
            optional={"from": st.integers(-1, 5), "changes": st.lists(st.integers() | st.none())},
        ),
    ),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(messages, max_size=5))
def test_whatever_is_sent_the_server_goes_on(served: Served, sent: list[str | bytes]) -> None:
    with served.connect() as socket:
        for message in sent:
            socket.send(message)
        socket.send(ask(77, "prefix_sums", BITS, 2))
        while True:  # past whatever the other messages led to
            data = socket.recv(timeout=30)
            if isinstance(data, bytes) and seen(data).id == 77 and seen(data).step == 2:
                return
            if isinstance(data, str):
                answer = json.loads(data)
                assert answer["type"] in ("ready", "error")
                assert "Something went wrong" not in answer.get("message", "")


def test_a_message_beyond_all_limits_closes_its_own_socket_only(served: Served) -> None:
    with served.connect() as socket:
        socket.send("x" * (2 << 20))
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=10)
    assert served.get("/api/catalogue")[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "http://localhost:1", "null"])
def test_pages_of_other_sites_are_refused(served: Served, origin: str) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        served.connect(origin=origin)
    assert served.get("/api/catalogue", Origin=origin)[0] == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "[", ""])
def test_other_names_for_this_machine_are_refused(served: Served, host: str) -> None:
    assert served.get("/", Host=host)[0] == 403
    assert served.get("/api/catalogue", Host=host)[0] == 403


def test_our_own_page_is_answered(served: Served) -> None:
    for host in (f"127.0.0.1:{served.port}", f"localhost:{served.port}", "[::1]:80"):
        assert served.get("/", Host=host, Origin=f"http://{host}")[0] == 200
    with served.connect(origin=served.address) as socket:
        socket.send(ask(1, "prefix_sums", BITS, 0))
        assert told(socket)["type"] == "ready"
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert served.get("/api/catalogue", **elsewhere, **{"Sec-Fetch-Mode": "no-cors"})[0] == 403
    assert served.get("/", **elsewhere, **{"Sec-Fetch-Mode": "navigate"})[0] == 200  # a link that was clicked


@pytest.mark.parametrize(
    "path",
    ["/../server.py", "/..%2fserver.py", "/%2e%2e/server.py", "/static/../../shelf.py", "/etc/passwd", "/boards"],
)
def test_no_path_leads_out_of_the_page(served: Served, path: str) -> None:
    status, body = served.get(path)
    assert status == 404
    assert b"import" not in body


def test_the_catalogue(served: Served) -> None:
    found = json.loads(served.get("/api/catalogue")[1])
    names = {one["name"] for one in found["weights"]}
    assert {"mazes", "prefix_sums", "group/listops-toy", "group/chess-toy"} <= names
    assert found["limits"]["mazes"] == 101
    assert "kruskal" in found["styles"]


FAKE = """#!{python}
import sys
for line in sys.stdin:
    word = line.split()[0]
    if word == "uci":
        print("uciok", flush=True)
    elif word == "isready":
        print("readyok", flush=True)
    elif word == "go":
        print("info depth 1 score cp 31", flush=True)
        print("bestmove a1a8", flush=True)
    elif word == "quit":
        break
"""
MATE = "6k1/5ppp/8/8/8/8/8/R5K1%20w%20-%20-%200%201"


def test_the_engine_answers_where_it_is_installed(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "stockfish"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    status, body = served.get(f"/api/engine?fen={MATE}")
    assert status == 200
    assert json.loads(body) == {"move": "Ra8#", "from": "a1", "to": "a8", "score": "+31"}


def test_the_engine_says_what_is_missing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_USUAL_PLACES", ())
    monkeypatch.setenv("PATH", "")
    status, body = served.get(f"/api/engine?fen={MATE}")
    assert (status, "not installed" in json.loads(body)["error"]) == (400, True)


@pytest.mark.skipif(engine.find_engine() is None, reason="no Stockfish on this machine")
def test_a_real_engine_finds_a_mate(served: Served) -> None:
    assert json.loads(served.get(f"/api/engine?fen={MATE}")[1])["move"] == "Ra8#"
    assert served.get("/api/engine?fen=rubbish")[0] == 400
    assert served.get("/api/engine?fen=" + "x" * 300)[0] == 400
