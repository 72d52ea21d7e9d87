"""The panel with the files of a conversation: the tree, previews, downloads, and names of files in the transcript."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from tenax.models import Reply, ScriptedCall
from tests.browser.test_for_everybody import nothing_is_wrong
from tests.support.browser import Serve, Tab, Window, expect, inside

READ = ScriptedCall("read_file", {"path": "notes/journal.md"})
FILES = {
    "notes/journal.md": "# Journal\n\nIt *only* grows.\n",
    "notes/table.csv": 'name,count\n"a, b",3\n',
    "run.py": "def main():\n    return 1\n",
    "page.html": "<h1>Hello</h1><script>document.title = 'pwned'</script>",
}


def open_panel(serve: Serve, window: Window, tmp_path: Path) -> Tab:
    """Open the panel of a conversation whose folder has these files."""
    for name, text in FILES.items():
        file = tmp_path / "work" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    tab = window.enter(serve(Reply(calls=[READ]), "Read."))
    tab.say("Read it")
    tab.answered("Read.")
    tab.button("Files").click()
    return tab


def test_files_are_shown_by_their_kind(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """Markdown as text, a table as a table, code as code, and a page in a frame in which no script runs."""
    # Chromium reports the script that the frame refuses.
    window.expects("sandboxed", "script")
    tab = open_panel(serve, window, tmp_path)
    panel = tab.page.get_by_role("complementary", name="Files")
    nothing_is_wrong(tab, "files")
    panel.get_by_text("notes", exact=True).click()
    panel.get_by_role("button", name="journal.md").click()
    expect(panel.locator("h3")).to_have_text("Journal")
    expect(panel.locator("em")).to_have_text("only")
    nothing_is_wrong(tab, "preview")
    tab.button("Back to the files").click()
    panel.get_by_text("notes", exact=True).click()
    panel.get_by_role("button", name="table.csv").click()
    expect(panel.locator("td")).to_have_text(["a, b", "3"])
    tab.button("Back to the files").click()
    panel.get_by_role("button", name="run.py").click()
    expect(panel.locator(".hljs-keyword").first).to_have_text("def")
    tab.button("Back to the files").click()
    panel.get_by_role("button", name="page.html").click()
    frame = inside(tab.page.locator(".files-panel iframe"))
    expect(frame.locator("h1")).to_have_text("Hello")
    assert "pwned" not in tab.page.title()


def test_all_files_and_one_file_are_downloaded(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """One as it is, and all of them in a zip file."""
    tab = open_panel(serve, window, tmp_path)
    panel = tab.page.get_by_role("complementary", name="Files")
    with tab.page.expect_download() as started:
        panel.get_by_role("link", name="Download all as a zip file").click()
    content = Path(started.value.path()).read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert sorted(archive.namelist()) == sorted(FILES)
    panel.get_by_role("button", name="run.py").click()
    with tab.page.expect_download() as started:
        panel.get_by_role("link", name="Download").click()
    assert Path(started.value.path()).read_text() == FILES["run.py"]


def test_the_name_of_a_file_in_the_transcript_opens_it(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """The line of a call stays as it is. A file that is gone gets a sentence."""
    window.expects("404")
    tab = open_panel(serve, window, tmp_path)
    tab.button("Close the files").click()
    name = tab.rows("tool").locator("code.subject")
    name.click()
    panel = tab.page.get_by_role("complementary", name="Files")
    expect(panel.locator("h3")).to_have_text("Journal")
    expect(tab.rows("tool").locator("details")).not_to_have_attribute("open", "")
    (tmp_path / "work" / "notes" / "journal.md").unlink()
    tab.button("Close the files").click()
    tab.button("Files").click()
    name.click()
    expect(panel.locator(".refusal")).to_contain_text("journal.md")
