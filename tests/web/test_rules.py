"""`/api/rules`, and the answer "always": from a question to a rule that is listed, heeded and taken back."""

from __future__ import annotations

from typing import Any

from tests.support.served import Page, Served, Stream

RULE = {"verdict": "allow", "tool": "write_file", "touches": "a/**"}


def question(stream: Stream, name: str) -> dict[str, Any]:
    """The tool's row, once it asks."""
    stream.read_until(
        name, lambda rows: any(row.get("state") == "asks" for row in rows.values())
    )
    return next(row for row in stream.rows[name].values() if row.get("state") == "asks")


def says(text: str) -> Any:
    return lambda rows: any(row.get("text") == text for row in rows.values())


def test_always_allows_from_now_on(asking: Served) -> None:
    """The patterns are offered; one that does not fit is refused; the next conversation is not asked."""
    page = asking.browser()
    name = page.new()
    page.say(name, "Write it down.")
    with page.stream(f"-~{name}:") as stream:
        row = question(stream, name)
        (found,) = page.get(f"/conversations/{name}/approvals")["questions"]
        assert f"{found['message']}:{found['call']}" == row["id"]
        patterns = ["a/note.txt", "a/*.txt", "a/**"]
        assert found["conversation"] == found["always"] == patterns
        assert found["diff"].startswith("--- a/note.txt\n+++ a/note.txt\n@@ -0,0 ")
        assert found["badge"] == "changes a file"
        answer = {
            "message": found["message"],
            "call": found["call"],
            "answer": "always",
        }
        path = f"/conversations/{name}/approvals"
        refused = page.post(path, {**answer, "pattern": "b/*"}, status=409)
        assert (
            refused["detail"]
            == "The pattern b/* does not fit what this call touches: a/note.txt"
        )
        assert page.get("/rules")["rules"] == []
        page.post(path, {**answer, "pattern": "a/**"}, status=202)
        stream.read_until(name, says("Thank you."))
    assert page.get(f"/conversations/{name}/approvals")["questions"] == []
    assert page.get("/rules")["rules"] == [RULE]
    second = page.new()
    page.say(second, "Again.")
    with page.stream(f"-~{second}:") as stream:
        stream.read_until(second, says("Thank you."))


def test_a_change_in_a_terminal_holds_in_the_server_at_once(asking: Served) -> None:
    """Denied beside it, the call is not made though the person allows it; taken back, it asks again."""
    page = asking.browser()
    name = page.new()
    page.say(name, "Write it down.")
    with page.stream(f"-~{name}:") as stream:
        message, _, call = question(stream, name)["id"].partition(":")
        assert asking.tenax("rules", "add", "deny", "*", "a/*").returncode == 0
        answer = {"message": int(message), "call": call, "answer": "once"}
        page.post(f"/conversations/{name}/approvals", answer, status=202)
        stream.read_until(name, says("A rule forbids write_file for this: a/note.txt"))
        stream.read_until(name, says("Thank you."))
    assert not (asking.home / "work" / "a").exists()
    assert asking.tenax("rules", "remove", "1").returncode == 0
    again = page.new()
    page.say(again, "Write it down.")
    with page.stream(f"-~{again}:") as stream:
        question(stream, again)


def test_rules_are_added_and_taken_back(page: Page) -> None:
    """Named by what they say: a list that is old takes no other rule away."""
    before = page.get("/rules")["rules"]
    deny = {"verdict": "deny", "tool": "nothing_like_it", "touches": "x [1]*"}
    assert page.post("/rules", deny, status=201)["rules"] == [*before, deny]
    assert page.post("/rules", deny, status=201)["rules"] == [*before, deny]
    gone = page.http.delete("/api/rules", params=deny)
    assert (gone.status_code, gone.json()["rules"]) == (200, before)
    again = page.http.delete("/api/rules", params=deny)
    assert (again.status_code, again.json()["detail"]) == (
        409,
        "This rule no longer exists.",
    )
    for bad in (
        {"verdict": "ask", "tool": "x"},
        {"verdict": "deny", "tool": ""},
        {"verdict": "deny", "tool": "\n"},
    ):
        page.post("/rules", bad, status=400)
    assert page.get("/rules")["rules"] == before


def test_what_others_answer_makes_no_rule(asking: Served) -> None:
    """Another user of the server is offered none, and who sends one all the same is refused."""
    owner = asking.browser()
    berta = asking.browser(asking.tenax("link", "--user", "berta").stdout.strip())
    name = berta.new()
    berta.say(name, "Write it down.")
    with berta.stream(f"-~{name}:") as stream:
        question(stream, name)
    (found,) = berta.get(f"/conversations/{name}/approvals")["questions"]
    assert found["always"] == []
    answer = {
        "message": found["message"],
        "call": found["call"],
        "answer": "always",
        "pattern": "a/*",
    }
    refused = berta.post(f"/conversations/{name}/approvals", answer, status=409)
    assert refused["detail"] == "Only the person who runs this Tenax makes its rules."
    assert (
        owner.http.post(f"/api/conversations/{name}/approvals", json=answer).status_code
        == 404
    )
    assert owner.get("/rules")["rules"] == []
    assert len(berta.get(f"/conversations/{name}/approvals")["questions"]) == 1


def test_a_denial_with_a_reason_and_an_answer_to_all(asking: Served) -> None:
    """The reason has a limit. An answer to all needs an approval that waits."""
    page = asking.browser()
    name = page.new()
    page.say(name, "Write it down.")
    path = f"/conversations/{name}/approvals"
    with page.stream(f"-~{name}:") as stream:
        question(stream, name)
        (found,) = page.get(path)["questions"]
        every = {"message": found["message"], "answer": "no"}
        page.post(f"{path}/all", {**every, "why": "x" * 2001}, status=400)
        page.post(f"{path}/all", {**every, "answer": "always"}, status=400)
        page.post(f"{path}/all", {**every, "message": 1}, status=409)
        page.post(f"{path}/all", {**every, "why": "Not there."}, status=202)
        stream.read_until(name, says("Thank you."))
        (call,) = [row for row in stream.rows[name].values() if row["kind"] == "tool"]
        assert call["text"] == "The person said no, and why: Not there."
    page.post(f"{path}/all", every, status=409)
