"""`GET /resources/{name}/usage` as JSON or, for accounts and spreadsheets, as CSV."""

from __future__ import annotations

import csv
import io
from typing import Final

from fairlane.core.access import Scope
from fairlane.core.errors import InvalidRequest
from fairlane.engine.node import Node
from fairlane.http.messages import Answer, HttpRequest, Raw, Route, Routes
from fairlane.schema.resources import RESOURCE_USAGE, ShowUsage, UsageReport
from fairlane.services.catalog import service_of

TYPE: Final = "text/csv; charset=utf-8"
COLUMNS: Final = ("day", "agentId", "unit", "used")


class UsageRoute:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        route = Route(self.show, Scope.READ, operation=RESOURCE_USAGE)
        return {RESOURCE_USAGE.path: {"GET": route}}

    async def show(self, request: HttpRequest) -> Answer:
        reading = RESOURCE_USAGE.reading
        found = request.query("format", *reading.parameters)
        wanted = found.pop("format", "json")
        if wanted not in ("json", "csv"):
            raise InvalidRequest("query parameter 'format' must be one of json, csv")
        path = {name: request.path[name] for name in RESOURCE_USAGE.parameters}
        typed = ShowUsage(**reading.path(path), **reading.query(found))
        report = await service_of(RESOURCE_USAGE)(self._node, request.caller, typed)
        if wanted == "json":
            return Answer(RESOURCE_USAGE.status, report)
        return Answer(RESOURCE_USAGE.status, Raw(as_csv(report).encode(), TYPE))


def as_csv(report: UsageReport) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((row.day, row.agent, row.unit, row.used) for row in report.rows)
    return text.getvalue()
