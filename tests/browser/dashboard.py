"""The dashboard in a real browser. The page object reports console errors and exceptions.

Whatever a test does, three things must not happen: an error in the console, an exception nobody
caught, and something that the page's own security policy had to stop. `faults` names them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from axe_playwright_python.base import AXE_SCRIPT  # type: ignore[import-untyped]  # it has none
from playwright.async_api import expect

from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import ConsoleMessage, Locator, Page, Response

    from tests.http.api import Api
    from tests.http.server import Server

SERIOUS = {"serious", "critical"}
# Kept across reloads by the browser itself, and read before the page's own script runs.
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
RULES = ("wcag2a", "wcag2aa", "best-practice")

expect.set_options(timeout=WAIT_SECONDS * 1000)


class Dashboard:
    def __init__(self, page: Page, server: Server) -> None:
        self.page = page
        self.server = server
        self.faults: list[str] = []
        self.expected: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        page.on("response", self._answered)

    @property
    def api(self) -> Api:
        return self.server.api

    @property
    def main(self) -> Locator:
        return self.page.locator("main")

    async def open(self, place: str = "overview") -> None:
        """Go to a page of the dashboard and wait until it shows what it is about."""
        target = f"{self.server.url}/#/{place}"
        if self.page.url.startswith(self.server.url):
            await self.page.evaluate("place => { location.hash = `#/${place}`; }", place)
        else:
            await self.page.goto(target)
        await expect(self.main.locator("h1")).to_be_visible()
        await expect(self.main.locator(".loading")).to_have_count(0)

    async def sees(self, text: str | re.Pattern[str]) -> None:
        await expect(self.main).to_contain_text(text)

    async def sees_not(self, text: str) -> None:
        await expect(self.main).not_to_contain_text(text)

    async def press(self, name: str | re.Pattern[str], *, within: Locator | None = None) -> None:
        await (within or self.page).get_by_role("button", name=name).first.click()

    async def confirm(self, name: str) -> None:
        """Answer the question that is asked, by the button that says what will happen."""
        await self.page.locator("dialog").get_by_role("button", name=name, exact=True).click()

    async def told(self, text: str | re.Pattern[str]) -> None:
        await expect(self.page.locator(".toast").filter(has_text=text).first).to_be_visible()

    def row(self, text: str) -> Locator:
        return self.main.locator("[data-row]").filter(has_text=text).first

    async def unreadable(self, *rules: str) -> list[str]:
        """What axe holds against the page as it is now, if it is serious; by some rules, or all."""
        if not await self.page.evaluate("'axe' in window"):
            await self.page.evaluate(AXE_SCRIPT)
        asked = {"resultTypes": ["violations"], "runOnly": list(rules or RULES)}
        found: dict[str, Any] = await self.page.evaluate("asked => axe.run(asked)", asked)
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:3]]}"
            for one in found["violations"]
            if one["impact"] in SERIOUS
        ]

    async def checked(self) -> list[str]:
        """All faults so far."""
        violations: list[str] = await self.page.evaluate("() => window.violations ?? []")
        return [*self.faults, *(f"policy: {one}" for one in violations)]

    def expect_fault(self, part: str) -> None:
        """A refusal that a test provokes: browsers report each as an error of their own."""
        self.expected.append(part)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(
            one in message.text for one in self.expected
        ):
            self.faults.append(f"console: {message.text}")

    def _answered(self, answer: Response) -> None:
        if answer.status >= 500:
            self.faults.append(f"{answer.status} {answer.url}")
