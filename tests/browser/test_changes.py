"""What a turn changed in the folder: one line under it, the diffs, and back again, in two tabs at once."""

from __future__ import annotations

from tenax.config import load
from tenax.models import Reply, ScriptedCall
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Window, client, expect

CALLS = [
    ScriptedCall(
        "edit_file", {"path": "list.md", "old": "- tea\n", "new": "- coffee\n"}
    ),
    ScriptedCall("write_file", {"path": "notes/<b>new\u202e.md", "content": "fresh\n"}),
]


def test_what_was_changed_is_shown_and_put_back_for_all_who_watch(
    serve: Serve, window: Window
) -> None:
    """Nothing in a path is a tag or hides; what was put back is a line of its own, which takes that back."""
    served = serve(*(Reply(calls=[call]) for call in CALLS), "Done.")
    folder = load({"TENAX_HOME": str(served.home)}).tools_folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "list.md").write_text("# To buy\n\n- milk\n- tea\n- bread\n")
    client(served).post(
        "/rules", {"verdict": "allow", "tool": "*_file", "touches": "*"}
    )
    tab = window.enter(served)
    tab.say("Make it coffee")
    tab.answered("Done.")
    other = window.enter(served)
    other.page.goto(tab.page.url)
    line = tab.rows("files").locator("summary")
    expect(line).to_have_text("Changed 2 files.")
    line.click()
    diffs = tab.page.locator(".diff")
    expect(diffs.nth(0)).to_contain_text("list.md changed.")
    expect(diffs.nth(0).locator(".minus")).to_have_text("-- tea")
    expect(diffs.nth(0).locator(".plus")).to_have_text("+- coffee")
    expect(diffs.nth(1)).to_contain_text("notes/<b>new\\u202e.md added.")
    nothing_is_wrong(tab, "changes")
    (folder / "notes" / "<b>new\u202e.md").write_text("by hand")
    tab.button("Revert changes").click()
    expect(tab.page.locator(".left")).to_contain_text(
        "It is no longer what the turn left."
    )
    assert (folder / "list.md").read_text().endswith("- milk\n- tea\n- bread\n")
    for each in (tab, other):
        expect(each.rows("files").locator("summary")).to_have_text(
            ["Changed 2 files. Reverted.", "Put back 1 file."]
        )
    other.rows("files").nth(1).locator("summary").click()
    other.button("Revert changes").click()
    expect(other.rows("files").locator("summary").nth(0)).to_have_text(
        "Changed 2 files."
    )
    assert "- coffee" in (folder / "list.md").read_text()
