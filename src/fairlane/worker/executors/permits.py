"""`work.permit(…)`: reserve resources for one call of a run, and report what the call used.

The block begins when the resources are reserved. Its end settles the permit with what was reported,
or as reserved. Async handlers write `async with`, plain ones `with`. Caution: a permit whose
response was lost stays reserved until its lease ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from fairlane.core.errors import InvalidRequest
from fairlane.core.json_types import JsonObject

if TYPE_CHECKING:
    from types import TracebackType

    from fairlane.worker.executors.base import Run

Amount = int | float | str
Amounts = Mapping[str, Amount]
Needs = Mapping[str, Amounts]

T = TypeVar("T")


class SettlementReport(NamedTuple):
    """A run's report about resources: amounts used, providers that refuse, remaining amounts.

    Each is by resource; None if nothing was reported.
    """

    usage: dict[str, dict[str, Amount]] | None = None
    closed: dict[str, JsonObject] | None = None
    observed: dict[str, dict[str, dict[str, Amount]]] | None = None


NOTHING: Final = SettlementReport()


class ResourceNotes:
    """Collects reports about the resources of a permit or of a whole task."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._names = names
        self._usage: dict[str, dict[str, Amount]] = {}
        self._closed: dict[str, JsonObject] = {}
        self._observed: dict[str, dict[str, dict[str, Amount]]] = {}

    def used(self, resource: str | None = None, /, **units: Amount) -> None:
        """Report how much was used. Units that are not reported are charged as reserved.

        Name the resource if there is more than one.
        """
        self._usage.setdefault(self._one(resource), {}).update(units)

    def closed(
        self, resource: str | None = None, /, *, retry_after: float, reason: str | None = None
    ) -> None:
        """Report that the provider refuses requests for `retry_after` seconds.

        The resource is closed for all tasks until then.
        """
        found: JsonObject = {"retryAfterMs": max(0, round(retry_after * 1000))}
        if reason is not None:
            found["reason"] = reason
        self._closed[self._one(resource)] = found

    def observed(self, resource: str | None = None, /, **remaining: Amount) -> None:
        """Report the remaining amount of each unit, as the provider states it."""
        units = {unit: {"remaining": amount} for unit, amount in remaining.items()}
        self._observed.setdefault(self._one(resource), {}).update(units)

    def report(self) -> SettlementReport:
        return SettlementReport(self._usage or None, self._closed or None, self._observed or None)

    def _one(self, resource: str | None) -> str:
        if resource is not None:
            return resource
        if len(self._names) != 1:
            named = ", ".join(self._names) or "none"
            raise InvalidRequest(f"the task has several resources ({named}): pass the name of one")
        return next(iter(self._names))


class CallPermit(ResourceNotes):
    """Resources that are reserved for one call.

    Attributes:
        permit_id: Id of the permit
        needs: The reserved amounts
    """

    def __init__(self, permit_id: str, needs: Needs) -> None:
        super().__init__(needs)
        self.permit_id = permit_id
        self.needs = needs


class PermitBlock:
    """The block of one permit, for `async with` and `with`."""

    def __init__(
        self, run: Run, loop: asyncio.AbstractEventLoop, needs: Needs, wait_seconds: float | None
    ) -> None:
        if not needs:
            raise InvalidRequest("a permit needs at least one resource")
        self._run = run
        self._loop = loop
        self._wait_seconds = wait_seconds
        self._needs = needs
        self._permit: CallPermit | None = None

    async def __aenter__(self) -> CallPermit:
        permit_id = await self._run.permit(self._needs, self._wait_seconds)
        self._permit = CallPermit(permit_id, self._needs)
        return self._permit

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._permit is not None:
            await self._run.settle(self._permit.permit_id, self._permit.report())

    def __enter__(self) -> CallPermit:
        return self._from_thread(self.__aenter__())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._from_thread(self.__aexit__(kind, error, trace))

    def _from_thread(self, doing: Coroutine[object, None, T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(doing, self._loop).result()
        doing.close()
        raise RuntimeError("use `async with work.permit(…)` in an async handler")
