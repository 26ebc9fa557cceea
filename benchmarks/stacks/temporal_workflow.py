"""The workflow of `temporal_sqlite`, in a module of its own: the SDK accepts no local classes."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow


@workflow.defn(name="NoOp", sandboxed=False)
class NoOp:
    @workflow.run  # type: ignore[untyped-decorator]  # not installed here
    async def run(self) -> None:
        await workflow.execute_activity("no_op", start_to_close_timeout=timedelta(seconds=60))
