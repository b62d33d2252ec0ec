"""The example app in two windows: two people, each with a device; offline, refused, contested."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import FilePayload

from lakesync.adapters.lake.memory import MemorySignedObjects
from lakesync.cli.session import call
from lakesync.ports import SignedRequest
from tests.support.local_gateway import GATEWAY, SECRET, LocalGateway
from tools.demo import todos
from tools.demo.setting import Setting
from tools.local_stack.pages import serve_pages, stop_pages
from tools.local_stack.ports import choose_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Page, Route

pytestmark = pytest.mark.browser

STORE = "https://store.example/"
ARRIVES_MS = 15_000
"""Without a socket a window looks every ten seconds."""

# The least contrast of text that is shown, with that text; colours as a canvas paints them.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((part) =>
      part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const seen = [];
  for (const element of document.querySelectorAll("body *")) {
    const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const isField = element.matches("textarea, input:not([type])") && element.value;
    if (!(isText || isField) || !element.checkVisibility()) continue;
    if (element.closest(".visually-hidden, option, .toast, :disabled, [inert]")) continue;
    const [one, other] = [rgba(getComputedStyle(element).color), behind(element)].map(light);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    seen.push([ratio, element.textContent || element.value]);
  }
  return seen.sort(([one], [other]) => one - other)[0];
}"""


class Store(MemorySignedObjects):
    """Where photos are: addresses of the web, which a page's requests are routed to."""

    def sign_put(self, key: str, size_bytes: int, digest: str) -> SignedRequest:
        return _web(super().sign_put(key, size_bytes, digest))

    def sign_get(self, key: str, media_type: str) -> SignedRequest:
        return _web(super().sign_get(key, media_type))

    def answer(self, route: Route) -> None:
        """Do what a page asks of the store."""
        asked = route.request
        signed = SignedRequest(asked.url.replace(STORE, "memory:"), {})
        body = b""
        if asked.method == "PUT":
            self.send_bytes(signed, asked.post_data_buffer or b"")
        elif asked.method == "GET":
            body = b"".join(self.receive_bytes(signed, 0))
        headers = {
            "access-control-allow-origin": "*",
            "access-control-allow-methods": "GET, PUT",
            "access-control-allow-headers": "*",
            "access-control-expose-headers": "etag",
            "etag": '"1"',
        }
        route.fulfill(status=200, headers=headers, body=body)


def _web(signed: SignedRequest) -> SignedRequest:
    return replace(signed, url=signed.url.replace("memory:", STORE))


@pytest.fixture
def address(gateway: LocalGateway, tmp_path: Path) -> Iterator[str]:
    """Where the app is, with what the demo gives it."""
    assert (todos.APP / "dist" / "index.html").exists(), (
        "run tools/javascript.sh: it builds the app"
    )
    setting = Setting(gateway.url, GATEWAY, SECRET, tmp_path, gateway.socket_url)

    def ask(path: str, body: object) -> Any:
        token = setting.token("demo", "admin")
        return call(setting.url, token, "POST", f"{path}/{GATEWAY}", body)

    todos.declare(ask)
    todos.copy(setting, tmp_path / "pages")
    yield serve_pages(tmp_path, tmp_path / "pages", choose_port(0))
    stop_pages(tmp_path)


class Window:
    """A window of the app, and who sits at it."""

    def __init__(self, page: Page, address: str, person: str) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.goto(f"{address}/#{person}")
        page.wait_for_selector(".workspace:not(.skeleton)")

    def titles(self) -> list[str]:
        return self.page.locator(".todo-title > span:first-child").all_inner_texts()

    def shows(self, text: str) -> None:
        """Wait until a todo has this title."""
        self.page.locator(".todo", has_text=text).first.wait_for(timeout=ARRIVES_MS)

    def offline(self) -> None:
        self.page.get_by_label("Work offline").check()

    def online(self) -> None:
        self.page.get_by_label("Work offline").uncheck()

    def menu(self) -> Window:
        self.page.locator(".pill:visible").click()
        return self

    def write(self, title: str, label: str, text: str) -> None:
        """Open a todo, and write one of its fields."""
        self.page.locator(".todo-title", has_text=title).click()
        field = self.page.locator(".details").get_by_role("textbox", name=label)
        field.fill(text)
        field.press("Tab")
        self.page.keyboard.press("Escape")


@pytest.fixture
def window(device: Callable[[], BrowserContext], address: str) -> Iterator[Callable[[str], Window]]:
    """Return a new window at each call, on a device of its own."""
    opened: list[Window] = []

    def new(person: str) -> Window:
        opened.append(Window(device().new_page(), address, person))
        return opened[-1]

    yield new
    assert [fault for each in opened for fault in each.faults] == []


@pytest.fixture
def both(window: Callable[[str], Window]) -> tuple[Window, Window]:
    """Ada and Grace, each at a window, with the example's lists."""
    ada = window("ada")
    ada.page.get_by_role("button", name="Begin with an example").click()
    ada.shows("Sourdough")
    ada.page.locator(".mark[data-kind=waiting]").first.wait_for(state="detached")
    grace = window("grace")
    grace.shows("Sourdough")
    return ada, grace


def test_what_one_writes_the_other_sees_and_it_lights_up(both: tuple[Window, Window]) -> None:
    ada, grace = both
    grace.page.wait_for_timeout(700)  # what a first sync brings does not light up
    ada.page.keyboard.press("n")
    ada.page.keyboard.type("Cinnamon")
    ada.page.keyboard.press("Enter")
    ada.shows("Cinnamon")
    grace.page.locator(".todo[data-flash]", has_text="Cinnamon").wait_for(timeout=ARRIVES_MS)

    assert not ada.page.locator(".todo[data-flash]").count()
    assert grace.titles() == ada.titles()


def test_of_two_edits_made_offline_both_values_are_shown_and_one_is_chosen(
    both: tuple[Window, Window],
) -> None:
    ada, grace = both
    ada.menu().offline()
    grace.menu().offline()
    ada.write("Oat milk", "Title", "Oat milk, the barista one")
    ada.page.wait_for_timeout(20)
    grace.write("Oat milk", "Title", "Soy milk")
    assert ada.page.locator(".banner").inner_text().startswith("You work offline. 1 change waits.")
    grace.menu().online()
    grace.page.locator(".mark[data-kind=waiting]").wait_for(state="detached")
    ada.menu().online()
    card = ada.page.locator(".card[data-kind=contested]")
    card.wait_for(timeout=ARRIVES_MS)
    texts = card.locator(".version-text").all_inner_texts()
    card.get_by_role("button", name="Keep this").first.click()
    grace.shows("Oat milk, the barista one")

    assert texts == ["Oat milk, the barista one", "Soy milk"]
    assert card.count() == 0
    assert "Soy milk" not in ada.titles()


def test_refused_price_is_corrected_in_the_page(both: tuple[Window, Window]) -> None:
    ada, grace = both
    ada.write("Coffee beans", "Price", "12,50")
    card = ada.page.locator(".card[data-kind=refused]")
    card.wait_for(timeout=ARRIVES_MS)
    assert "“12,50” is no price" in card.inner_text()
    assert ada.page.locator(".todo", has_text="Coffee beans").inner_text().endswith("12,50")

    card.get_by_label("Price").fill("12.50")
    card.get_by_role("button", name="Send as corrected").click()
    grace.shows("12.50")
    assert card.count() == 0


def test_edit_of_a_list_that_the_other_keeps_by_now_is_refused_and_taken_back(
    both: tuple[Window, Window],
) -> None:
    ada, grace = both
    grace.menu().offline()
    grace.page.locator(".todo", has_text="Tomatoes").get_by_role("checkbox").check(force=True)
    grace.page.locator(".mark[data-kind=waiting]").wait_for()
    ada.page.get_by_label("More about this list").click()
    ada.page.get_by_role("button", name="Only I change it").click()
    ada.page.get_by_text("Only you change this list").wait_for()
    ada.page.locator(".mark[data-kind=waiting]").first.wait_for(state="detached")
    grace.menu().online()
    card = grace.page.locator(".card[data-kind=refused]")
    # The page that says who keeps it may come behind the refusal.
    card.get_by_text("Only Ada changes this list now.").wait_for(timeout=ARRIVES_MS)

    card.get_by_role("button", name="Take it back").click()
    card.wait_for(state="detached")
    tomatoes = grace.page.locator(".todo", has_text="Tomatoes").get_by_role("checkbox")
    assert not tomatoes.is_checked()
    assert tomatoes.is_disabled()
    assert not grace.page.get_by_label("Add to Groceries").count()


def test_photo_that_one_adds_offline_is_seen_by_the_other_once_it_is_sent(
    both: tuple[Window, Window], gateway: LocalGateway
) -> None:
    ada, grace = both
    store = Store()
    gateway.signed = store
    for each in both:
        each.page.context.route(f"{STORE}**", store.answer)
    ada.menu().offline()
    picture = ada.page.screenshot()
    ada.page.locator(".todo-title", has_text="Sourdough").click()
    photo = FilePayload(name="bread.png", mimeType="image/png", buffer=picture)
    ada.page.locator("input[type=file]").set_input_files(photo)
    ada.page.locator(".photo-waits").wait_for()
    assert not store.objects

    ada.menu().online()
    ada.page.locator(".photo-waits").wait_for(state="detached", timeout=ARRIVES_MS)
    grace.page.locator(".todo", has_text="has a photo").wait_for(timeout=ARRIVES_MS)
    grace.page.locator(".todo-title", has_text="Sourdough").click()
    shown = grace.page.get_by_role("img", name="Photo of Sourdough")
    shown.wait_for(timeout=ARRIVES_MS)

    (kept,) = store.objects.values()
    assert kept[:2] == b"\xff\xd8"  # a JPEG, whatever was chosen
    assert shown.evaluate("(image) => image.naturalWidth") == 1_280


def test_what_is_no_picture_is_said_to_be_none(both: tuple[Window, Window]) -> None:
    ada, _ = both
    ada.page.locator(".todo-title", has_text="Sourdough").click()
    text = FilePayload(name="list.txt", mimeType="text/plain", buffer=b"milk")
    ada.page.locator("input[type=file]").set_input_files(text)

    ada.page.get_by_role("alert").get_by_text("“list.txt” is no picture").wait_for()


def test_everything_is_done_by_keys(both: tuple[Window, Window]) -> None:
    ada, _ = both
    keys = ada.page.keyboard
    keys.press("ArrowDown")
    keys.press("ArrowDown")
    keys.press("x")
    ada.page.locator(".todo[data-done]", has_text="Sourdough").wait_for()
    keys.press("2")
    ada.shows("Fix the dripping tap")
    ada.page.locator("body").click(position={"x": 2, "y": 2})
    keys.press("ArrowDown")
    keys.press("Alt+ArrowDown")
    ada.page.locator(".todo:first-child", has_text="shelf").wait_for()
    keys.press("Delete")
    ada.page.get_by_text("Deleted “Fix the dripping tap”").wait_for()
    # The list is drawn anew by a watch, which may come behind the words.
    ada.page.locator(".todo", has_text="Fix the dripping tap").wait_for(state="detached")
    assert "Fix the dripping tap" not in ada.titles()
    ada.page.get_by_role("button", name="Undo").click()
    ada.shows("Fix the dripping tap")
    keys.press("?")
    assert "Work offline" in ada.page.get_by_role("dialog").inner_text()
    keys.press("Escape")
    keys.press("o")
    assert ada.page.locator(".banner").inner_text().startswith("You work offline")


def test_what_was_written_offline_is_there_after_a_reload(both: tuple[Window, Window]) -> None:
    ada, _ = both
    ada.menu().offline()
    ada.write("Tomatoes", "Note", "The small ones.")
    ada.page.locator(".mark[data-kind=waiting]").wait_for()
    ada.page.reload()
    ada.page.locator(".todo-title", has_text="Tomatoes").click()

    assert ada.page.get_by_role("textbox", name="Note").input_value() == "The small ones."


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_and_nothing_is_cut_on_a_phone(
    both: tuple[Window, Window], scheme: Any
) -> None:
    ada, _ = both
    ada.write("Coffee beans", "Price", "12,50")
    ada.page.locator(".card[data-kind=refused]").wait_for(timeout=ARRIVES_MS)
    ada.page.emulate_media(color_scheme=scheme)
    ada.page.locator(".todo-title", has_text="Coffee beans").click()
    ada.menu()
    for width in (1_280, 375):
        ada.page.set_viewport_size({"width": width, "height": 800})
        ratio, text = ada.page.evaluate(CONTRAST)
        scrolls = "document.documentElement.scrollWidth > innerWidth"

        assert ratio >= 4.5, text
        assert not ada.page.evaluate(scrolls)
