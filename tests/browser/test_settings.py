"""Settings: one page with sections, which are saved at once and are the same in every browser of a person."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Route

from tenax.config import load
from tenax.models import Reply
from tenax.testing import Provider
from tests.browser.test_for_everybody import LOOKS, PHONE, nothing_is_wrong
from tests.browser.test_models import MODELS, set_up_two
from tests.support.browser import (
    Beside,
    Chromium,
    Serve,
    Tab,
    Window,
    client,
    expect,
)
from tests.support.served import Served

SECTIONS = {
    "models": "Models",
    "permissions": "Permissions",
    "tools": "Tools & MCP",
    "chats": "Chat apps",
    "schedules": "Schedules",
    "memory": "Memory",
    "projects": "Projects",
    "appearance": "Appearance",
    "notifications": "Notifications",
    "usage": "Usage",
    "data": "Data",
    "devices": "Devices",
    "about": "About",
}


def open_section(tab: Tab, served: Served, name: str) -> Locator:
    """Open a section by its URL, and return its content after everything in it was loaded."""
    tab.page.goto(f"{served.url}/settings/{name}")
    section = tab.page.locator("main .section")
    expect(section.get_by_role("heading", level=1)).to_have_text(SECTIONS[name])
    loaded = {
        "permissions": "Rules",
        "tools": "Folder",
        "chats": "Add a chat app",
        "schedules": "No schedules yet.",
        "memory": "Review conversations",
        "usage": "By conversation",
        "data": "Data folder",
        "devices": "This browser",
    }
    if name in loaded:
        expect(section.get_by_text(loaded[name]).first).to_be_visible()
    return section


def values(served: Served) -> Any:
    return client(served).get("/preferences")["preferences"]


def test_every_section_opens_by_click_by_key_and_by_address(
    serve: Serve, window: Window
) -> None:
    """The back button of the browser leads to the section before; /setup still leads here."""
    served = serve("Yes.")
    tab = window.enter(served)
    listed = tab.page.get_by_role("navigation", name="Conversations")
    listed.get_by_role("link", name="Settings").click()
    expect(tab.page).to_have_url(f"{served.url}/settings")
    expect(tab.page).to_have_title("Settings · Tenax")
    sections = tab.page.get_by_role("navigation", name="Settings")
    title = tab.page.locator(".section").get_by_role("heading", level=1)
    expect(title).to_have_text("Models")
    for name, words in SECTIONS.items():
        link = sections.get_by_role("link", name=words, exact=True)
        if name in {"memory", "usage"}:
            link.focus()
            tab.page.keyboard.press("Enter")
            expect(link).to_be_focused()
        else:
            link.click()
        expect(title).to_have_text(words)
        expect(tab.page).to_have_url(f"{served.url}/settings/{name}")
        expect(link).to_have_attribute("aria-current", "page")
    tab.page.go_back()
    expect(title).to_have_text("Devices")
    for name in SECTIONS:
        open_section(tab, served, name)
    tab.page.goto(f"{served.url}/setup")
    expect(title).to_have_text("Models")


@pytest.mark.parametrize(("scheme", "size"), LOOKS)
def test_no_section_keeps_anybody_out(
    chromium: Chromium, serve: Serve, tmp_path: Path, scheme: str, size: str
) -> None:
    """With the forms open. On a phone nothing scrolls sideways, and everything is as large as a thumb."""
    set_up_two(tmp_path)
    served = serve(env={"TENAX_MEMORY_REVIEW": "false"})
    how = {
        "color_scheme": scheme,
        "reduced_motion": "reduce",
        **(PHONE if size == "phone" else {}),
    }
    with chromium.window(**how) as window:
        tab = window.enter(served)
        tab.say("Hello")
        tab.answered(MODELS["large"])
        for name in SECTIONS:
            section = open_section(tab, served, name)
            if name == "models":
                tab.button("Edit parameters: large").click()
                tab.page.get_by_role("button", name="Connect another model").click()
            elif name == "projects":
                tab.button("Add a project").click()
            for fold in section.locator("summary").all():
                fold.click()
            nothing_is_wrong(tab, name)
            if size == "phone":
                width = tab.page.evaluate("document.documentElement.scrollWidth")
                assert width <= PHONE["viewport"]["width"], name  # type: ignore[index]


def test_on_a_phone_the_list_comes_first(chromium: Chromium, serve: Serve) -> None:
    """A section replaces the list and has a way back; the keyboard follows."""
    served = serve("Yes.")
    with chromium.window(**PHONE) as window:
        tab = window.enter(served)
        tab.page.goto(f"{served.url}/settings")
        sections = tab.page.get_by_role("navigation", name="Settings")
        expect(sections).to_be_visible()
        expect(tab.page.locator(".section")).to_be_hidden()
        sections.get_by_role("link", name="Appearance").click()
        expect(sections).to_be_hidden()
        title = tab.page.get_by_role("heading", name="Appearance")
        expect(title).to_be_focused()
        tab.page.get_by_role("main").get_by_role("link", name="Settings").click()
        expect(sections).to_be_visible()
        expect(title).to_be_hidden()


def test_the_look_is_the_same_after_a_reload_and_in_another_browser(
    serve: Serve, window: Window, chromium: Chromium
) -> None:
    """The other browser changes while it is open. What the store says wins over the copy of the browser."""
    served = serve("Yes.")
    tab = window.enter(served)
    page = tab.page.locator("html")
    with chromium.window() as other:
        second = other.tab(served.tenax("link").stdout.strip())
        expect(second.box).to_be_visible()
        open_section(tab, served, "appearance")
        for choice in ("Dark", "Very large", "Compact"):
            tab.page.get_by_role("radio", name=choice).check()
        for html in (page, second.page.locator("html")):
            expect(html).to_have_attribute("data-theme", "dark")
            expect(html).to_have_attribute("data-size", "huge")
            expect(html).to_have_attribute("data-density", "compact")
        expect(second.page.locator("body")).to_have_css(
            "background-color", "rgb(28, 28, 31)"
        )
    tab.page.reload()
    expect(tab.page.get_by_role("radio", name="Dark")).to_be_checked()
    expect(page).to_have_attribute("data-theme", "dark")
    assert values(served) == {"theme": "dark", "size": "huge", "density": "compact"}
    tab.page.get_by_role("radio", name="System").check()
    expect(page).not_to_have_attribute("data-theme", re.compile("."))


def test_an_answer_about_one_choice_keeps_the_next_one(
    serve: Serve, window: Window
) -> None:
    """The person chooses twice before the server has answered once."""
    served = serve("Yes.")
    tab = window.enter(served)
    open_section(tab, served, "appearance")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    tab.page.route("**/api/preferences", hold)
    page = tab.page.locator("html")
    tab.page.get_by_role("radio", name="Very large").check()
    compact = tab.page.get_by_role("radio", name="Compact")
    compact.check()
    expect(page).to_have_attribute("data-density", "compact")
    assert len(held) == 2
    # The first answer shows when the page has taken it.
    held[0].fulfill(json={"preferences": {"size": "huge", "theme": "dark"}})
    expect(page).to_have_attribute("data-theme", "dark")
    assert compact.is_checked()
    held[1].continue_()
    expect(page).not_to_have_attribute("data-theme", "dark")
    assert compact.is_checked()


def test_a_look_that_was_chosen_is_there_before_the_server_answers(
    serve: Serve, window: Window
) -> None:
    """A copy in the browser avoids a flash at load."""
    served = serve("Yes.")
    tab = window.enter(served)
    open_section(tab, served, "appearance")
    tab.page.get_by_role("radio", name="Dark").check()
    expect(tab.page.get_by_role("radio", name="Dark")).to_be_checked()
    window.expects("ERR_FAILED")
    tab.page.route("**/api/**", lambda route: route.abort())
    tab.page.reload()
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_preference_that_is_not_stored_is_taken_back(
    serve: Serve, window: Window
) -> None:
    """The reason stands beside the field."""
    window.expects("status of 503")
    served = serve("Yes.")
    tab = window.enter(served)
    open_section(tab, served, "appearance")
    refuse = {"status": 503, "json": {"detail": "The store does not respond."}}
    tab.page.route("**/api/preferences", lambda route: route.fulfill(**refuse))
    tab.page.get_by_role("radio", name="Dark").click()
    field = tab.page.get_by_role("group", name="Theme")
    expect(field.get_by_role("alert")).to_have_text("The store does not respond.")
    expect(tab.page.get_by_role("radio", name="System")).to_be_checked()
    expect(tab.page.locator("html")).not_to_have_attribute("data-theme", "dark")


def test_ctrl_enter_sends_if_the_person_wants_it(serve: Serve, window: Window) -> None:
    """Then Enter begins a new line."""
    served = serve("Heard.")
    tab = window.enter(served)
    open_section(tab, served, "appearance")
    tab.page.get_by_role("radio", name="Ctrl+Enter").check()
    tab.page.get_by_role("link", name="New conversation").first.click()
    expect(tab.page.get_by_text("Ctrl+Enter to send")).to_be_visible()
    tab.box.fill("one")
    tab.box.press("Enter")
    tab.box.press_sequentially("two")
    expect(tab.box).to_have_value("one\ntwo")
    tab.box.press("Control+Enter")
    tab.answered("Heard.")


def test_a_setting_of_the_environment_is_locked_and_names_the_variable(
    serve: Serve, window: Window
) -> None:
    """The others are saved in the file at once."""
    served = serve("Yes.", env={"TENAX_MEMORY_REVIEW": "false"})
    tab = window.enter(served)
    section = open_section(tab, served, "memory")
    review = section.get_by_role("switch", name="Review conversations")
    expect(review).to_be_disabled()
    expect(review).not_to_be_checked()
    expect(section.get_by_text("Set by TENAX_MEMORY_REVIEW")).to_be_visible()
    context = section.get_by_role("switch", name="Read instructions in folders")
    expect(context).to_be_checked()
    context.uncheck()
    expect(tab.page.locator(".toast", has_text="Saved.")).to_be_visible()
    assert "context_files = false" in (served.home / "config.toml").read_text()


def test_a_value_that_is_refused_is_explained_beside_its_field(
    serve: Serve, window: Window
) -> None:
    """It stays as it was typed, and the file as it was; a good one replaces it, and nothing removes it."""
    window.expects("status of 409")
    served = serve("Yes.")
    before = (served.home / "config.toml").read_text()
    tab = window.enter(served)
    section = open_section(tab, served, "usage")
    limit = section.get_by_label("Limit for a day")
    for wrong in ("much", "-1"):
        limit.fill(wrong)
        limit.press("Enter")
        expect(
            section.get_by_role("alert").filter(has_text="budget.day")
        ).to_be_visible()
        expect(limit).to_have_attribute("aria-invalid", "true")
        expect(limit).to_have_value(wrong)
    nothing_is_wrong(tab, "refused")
    assert (served.home / "config.toml").read_text() == before
    budget = lambda: load({"TENAX_HOME": str(served.home)}).budget.day  # noqa: E731  (what the file says)
    limit.fill("2.5")
    limit.press("Enter")
    expect(tab.page.locator(".toast", has_text="Saved.")).to_be_visible()
    expect(limit).to_have_attribute("aria-invalid", "false")
    assert budget() == 2.5
    tab.page.reload()
    expect(limit).to_have_value("2.5")
    limit.fill("")
    limit.blur()
    expect(tab.page.locator(".toast", has_text="Saved.")).to_be_visible()
    assert budget() is None


def test_a_key_is_stored_replaced_and_removed_but_never_shown(
    serve: Serve, window: Window
) -> None:
    """The file for keys has it; the page and the settings file do not."""
    served = serve("Yes.")
    tab = window.enter(served)
    section = open_section(tab, served, "tools")
    key = section.get_by_label("Key for Brave Search", exact=True)
    key.fill("hunter2")
    key.press("Enter")
    expect(key).to_have_attribute("placeholder", "A key is set")
    expect(key).to_have_value("")
    assert "hunter2" in (served.home / "secrets.toml").read_text()
    assert "hunter2" not in (served.home / "config.toml").read_text()
    tab.page.reload()
    expect(key).to_have_attribute("placeholder", "A key is set")
    assert "hunter2" not in tab.page.content()
    tab.button("Remove: Key for Brave Search").click()
    expect(key).to_have_attribute("placeholder", "No key")
    assert "hunter2" not in (served.home / "secrets.toml").read_text()


def test_parameters_favourites_and_the_order_of_models(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """A favourite comes first in the picker, in every browser. The active model cannot be removed."""
    set_up_two(tmp_path)
    served = serve()
    tab = window.enter(served)
    config = lambda: load({"TENAX_HOME": str(tmp_path)})  # noqa: E731  (what the file says)
    open_section(tab, served, "models")
    listed = tab.page.get_by_role("list", name="Connected models")
    expect(listed.get_by_role("listitem")).to_contain_text(["large", "small"])
    expect(tab.button("Remove: large")).to_have_count(0)
    tab.button("Favourite: small").click()
    expect(listed.get_by_role("listitem")).to_contain_text(["small", "large"])
    tab.button("Edit parameters: large").click()
    form = tab.page.get_by_role("group", name="Parameters of large")
    form.get_by_label("Temperature").fill("0.5")
    form.get_by_label("Temperature").press("Enter")
    expect(tab.page.locator(".toast", has_text="Saved.")).to_be_visible()
    form.get_by_label("Reasoning effort").select_option("High")
    expect(form.get_by_label("Reasoning effort")).to_be_enabled()
    expect(form.get_by_label("Reasoning effort")).to_have_value("high")
    assert (config().models["large"].temperature, config().models["large"].effort) == (
        0.5,
        "high",
    )
    tab.button("Use small").click()
    expect(tab.page.get_by_text("Active model: small")).to_be_visible()
    tab.button("Use large").click()
    expect(tab.page.get_by_text("Active model: large")).to_be_visible()
    assert config().model == "large"
    tab.page.get_by_label("Add a model…").select_option("small")
    order = tab.page.get_by_role("region", name="If a model fails")
    expect(order.get_by_role("listitem")).to_contain_text(["small"])
    assert config().fallback == ("small",)
    tab.page.get_by_role("link", name="New conversation").first.click()
    tab.page.locator("header").get_by_role("button", name="Model: ").click()
    expect(tab.page.get_by_role("menuitem").first).to_contain_text("small")
    open_section(tab, served, "models")
    tab.button("Remove: small").first.click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(listed.get_by_role("listitem")).to_have_count(1)
    assert list(config().models) == ["large"]
    assert config().fallback == ()


def test_one_of_hundreds_of_models_is_found_by_a_filter(
    serve: Serve, window: Window, beside: Beside
) -> None:
    """The provider fills in its URL and links to its keys; a name that is not listed can be written."""
    names = [f"vendor/model-{number}" for number in range(400)]
    pages = {"/v1/models": {"data": [{"id": name} for name in names]}}
    provider = beside.enter(Provider([Reply("Tried.")], pages=pages))
    served = serve("Yes.")
    tab = window.enter(served)
    open_section(tab, served, "models")
    tab.page.get_by_role("button", name="Connect another model").click()
    form = tab.page.get_by_role("form", name="Connect a model")
    form.get_by_label("Provider").select_option("OpenRouter")
    expect(form.get_by_label("URL")).to_have_value(re.compile("openrouter"))
    link = form.get_by_role("link", name="Get a key from OpenRouter")
    expect(link).to_have_attribute("rel", "noreferrer")
    expect(link).to_have_attribute("target", "_blank")
    form.get_by_label("Provider").select_option("Another server")
    form.get_by_label("URL").fill(f"{provider.url}/v1")
    form.get_by_role("button", name="Load models").click()
    expect(form.get_by_role("radio", name="vendor/")).to_have_count(400)
    form.get_by_label("Filter models").fill("model-37")
    expect(form.get_by_text("11 models.")).to_be_visible()
    form.get_by_role("radio", name="vendor/model-377").check()
    form.get_by_label("Filter models").fill("secret-1")
    expect(form.get_by_role("radio", name="Use the name “secret-1”")).to_be_visible()
    form.get_by_label("Filter models").fill("")
    expect(form.get_by_role("radio", name="vendor/model-377")).to_be_checked()
    form.get_by_role("button", name="Connect", exact=True).click()
    expect(tab.page.get_by_text("Active model: vendor/model-377")).to_be_visible()
    assert 'name = "vendor/model-377"' in (served.home / "config.toml").read_text()


def test_projects_are_added_changed_and_removed_in_every_browser(
    serve: Serve,
    window: Window,
    chromium: Chromium,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A folder that does not exist is refused beside the form, which stays as it was filled in."""
    window.expects("status of 400")
    served = serve("Yes.")
    folder = tmp_path_factory.mktemp("work") / "garden"
    tab = window.enter(served)
    open_section(tab, served, "projects")
    with chromium.window() as other:
        second = other.tab(served.tenax("link").stdout.strip())
        expect(second.box).to_be_visible()
        open_section(second, served, "projects")
        tab.button("Add a project").click()
        form = tab.page.get_by_role("form", name="Add a project")
        form.get_by_label("Name").fill("Garden")
        form.get_by_label("Folder").fill(str(folder))
        form.get_by_label("Instructions").fill("Water first.")
        form.get_by_role("button", name="Save").click()
        expect(form.get_by_role("alert")).to_contain_text("is not a folder")
        folder.mkdir()
        form.get_by_role("button", name="Save").click()
        listed = second.page.get_by_role("list", name="Projects")
        expect(listed).to_contain_text("Garden")
        expect(listed).to_contain_text("Water first.")
        second.button("Edit: Garden").click()
        second.page.get_by_label("Name").fill("Orchard")
        second.button("Save").click()
        expect(tab.page.get_by_role("list", name="Projects")).to_contain_text("Orchard")
    tab.button("Remove: Orchard").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(tab.page.get_by_text("No projects yet.")).to_be_visible()
    assert folder.is_dir()
    assert client(served).get("/projects") == {"projects": []}


def test_the_chart_shows_the_stored_numbers(serve: Serve, window: Window) -> None:
    """As bars with a text, and as a table; the conversation is a link."""
    served = serve(Reply("One.", cost=0.25), Reply("Two.", cost=0.5))
    tab = window.enter(served)
    tab.say("First")
    tab.answered("One.")
    tab.say("Second")
    tab.answered("Two.", count=2)
    stored = client(served).get("/usage", days=30)["total"]
    tokens = stored["input"] + stored["output"]
    section = open_section(tab, served, "usage")
    bars = section.locator("[data-amount]")
    expect(bars).to_have_count(30)
    assert (
        sum(float(bar.get_attribute("data-amount") or "") for bar in bars.all())
        == tokens
    )
    expect(section.get_by_role("img")).to_have_accessible_name(
        f"Usage of the last 30 days, at most {tokens:,} tokens a day."
    )
    expect(section.get_by_text(f"{tokens:,} tokens", exact=True)).to_be_visible()
    section.get_by_text("Show as a table").click()
    cells = section.get_by_role("table", name="By day").get_by_role("cell")
    expect(cells).to_have_text(
        [f"{stored['input']:,}", f"{stored['output']:,}", "$0.75"]
    )
    section.get_by_role("button", name="Cost").click()
    expect(section.get_by_text("$0.75", exact=True).first).to_be_visible()
    section.get_by_role("button", name="7 days").click()
    expect(bars).to_have_count(7)
    section.get_by_role("table", name="By conversation").get_by_role("link").click()
    tab.answered("Two.", count=2)


def test_everything_is_exported_and_verified(
    serve: Serve, window: Window, tmp_path: Path
) -> None:
    """The result of the verification stays with its time."""
    served = serve("Worth keeping.")
    tab = window.enter(served)
    tab.say("Hello")
    tab.answered("Worth keeping.")
    section = open_section(tab, served, "data")
    expect(section.get_by_text("Not verified yet.")).to_be_visible()
    section.get_by_role("button", name="Verify now").click()
    expect(section.get_by_text("All data verified.")).to_be_visible()
    tab.page.reload()
    expect(section.get_by_text("All data verified.")).to_be_visible()
    expect(section.locator("time")).to_be_visible()
    expect(section.get_by_text("config.toml")).to_be_visible()
    with tab.page.expect_download() as download:
        section.get_by_role("link", name="Markdown").click()
    file = tmp_path / "all.zip"
    download.value.save_as(file)
    with zipfile.ZipFile(file) as archive:
        texts = [archive.read(name) for name in archive.namelist()]
    assert any(b"Worth keeping." in text for text in texts)
    with tab.page.expect_download() as download:
        section.get_by_role("link", name="For another Tenax").click()
    assert download.value.suggested_filename.endswith(".jsonl")
    assert b'"type":"end"' in download.value.path().read_bytes().splitlines()[-1]


def test_the_default_mode_and_an_allow_rule(serve: Serve, window: Window) -> None:
    """Both are stored at once."""
    served = serve("Yes.")
    tab = window.enter(served)
    section = open_section(tab, served, "permissions")
    section.get_by_role("radio", name="Plan only").check()
    expect(tab.page.locator(".toast", has_text="Saved.")).to_be_visible()
    assert values(served)["mode"] == "plan"
    section.get_by_text("Add a rule").click()
    section.get_by_role("radio", name="Allow", exact=True).check()
    section.get_by_role("textbox", name="Tool").fill("read_file")
    section.get_by_role("button", name="Add", exact=True).click()
    expect(section.get_by_role("listitem")).to_have_text("Allow read_file *Remove")


def test_somebody_else_sees_only_what_they_may_change(
    serve: Serve, window: Window
) -> None:
    """No rules, no keys, no files of the server; the own look, usage and projects."""
    served = serve("Yes.")
    tab = window.tab(served.tenax("link", "--user", "berta").stdout.strip())
    expect(tab.box).to_be_visible()
    tab.page.goto(f"{served.url}/settings")
    sections = tab.page.get_by_role("navigation", name="Settings")
    expect(sections.get_by_role("link", name="Appearance")).to_be_visible()
    expect(sections.get_by_role("link", name="Tools & MCP")).to_have_count(0)
    expect(tab.page.get_by_role("button", name="Connect another")).to_have_count(0)
    for name, hidden in {
        "permissions": "Rules",
        "memory": "Review conversations",
        "data": "Data folder",
        "usage": "Limit for a day",
    }.items():
        sections.get_by_role("link", name=SECTIONS[name], exact=True).click()
        title = tab.page.locator(".section").get_by_role("heading", level=1)
        expect(title).to_have_text(SECTIONS[name])
        expect(tab.page.locator(".section").get_by_text(hidden)).to_have_count(0)
    sections.get_by_role("link", name="Appearance").click()
    tab.page.get_by_role("radio", name="Dark").check()
    expect(tab.page.locator("html")).to_have_attribute("data-theme", "dark")
    assert values(served) == {}


def test_notifications_ask_the_browser_when_they_are_switched_on(
    serve: Serve, chromium: Chromium
) -> None:
    """A browser that refuses says so; the choice of the person stays."""
    served = serve("Yes.")
    with chromium.window(permissions=[]) as window:
        tab = window.enter(served)
        section = open_section(tab, served, "notifications")
        tab.page.evaluate("Notification.requestPermission = async () => 'denied'")
        section.get_by_role("switch", name="Notify me").check()
        expect(section.get_by_text("This browser blocks notifications")).to_be_visible()
        assert values(served)["notifications"] is True
