"""Tasks: submit one or many, list, show, wait, cancel, retry."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from fairlane.compat import browseros
from fairlane.core import lifecycle
from fairlane.core.access import Caller
from fairlane.core.errors import FairlaneError, IdempotencyConflict, InvalidRequest
from fairlane.core.model import Submission, Task
from fairlane.core.submissions import (
    BATCH_MAX,
    DEFAULT_AGENT,
    Item,
    TaskRequest,
    batch_submissions,
    callback_of,
    invalid_task,
    submission,
)
from fairlane.engine.commands import Cancel, IdempotencyKey, NewBatch, Reset, Retry, Submit
from fairlane.engine.node import Node
from fairlane.engine.reads.views import Page, TaskView
from fairlane.schema import decoding
from fairlane.schema import tasks as schema
from fairlane.schema.approvals import newest
from fairlane.schema.task_filters import TaskFilter
from fairlane.schema.task_status import TaskStatus, brief_status, step_status, task_status
from fairlane.schema.tasks import (
    BatchAccepted,
    ManyTasks,
    NamedTask,
    TaskAccepted,
    TaskCancelled,
    TaskCount,
    TaskDeleted,
    TaskPage,
    TaskReset,
    TaskRetried,
    TasksChanged,
    TasksPruned,
    TaskWhy,
    batch_accepted,
    task_accepted,
    task_reset,
    task_retried,
    task_why,
)
from fairlane.services import offers, searching
from fairlane.services.pages import number
from fairlane.services.progress import add_progress
from fairlane.services.registry import implements
from fairlane.services.searching import Search

SHOWN_MAX: Final = 100
_OPEN: Final = tuple(state for state in lifecycle.STATES if state not in lifecycle.TERMINAL)
_FILTERS: Final = {
    **{one.name: one.encode_name for one in msgspec.structs.fields(TaskFilter)},
    "states": "state",
}

# -------------------------------------------------------------------- submit


@implements(schema.SUBMIT)
async def submit(node: Node, caller: Caller, request: schema.SubmitTask) -> TaskAccepted:
    made = submission_of(node, caller, request.task)
    warnings = await offers.checked(node, made)
    if made.depends_on:
        warnings = [*(warnings or ()), *await offers.parent_warnings(node, made, caller.agent)]
    key = idempotency_key(request.idempotency_key, made.agent, request.raw)
    outcome = (await node.submit(Submit([made], key, caller=submitter(caller))))[0]
    if isinstance(outcome, FairlaneError):
        raise outcome
    return task_accepted(outcome, warnings or None)


@implements(schema.SUBMIT_BATCH)
async def submit_batch(node: Node, caller: Caller, request: schema.SubmitBatch) -> BatchAccepted:
    agent = request.agent or caller.agent
    callback_url = callback_of(request.callback_url, request.webhook_url)
    new = NewBatch(node.new_id("bat"), agent or DEFAULT_AGENT, request.parallelism, callback_url)
    made = batch_submissions(
        [_item(raw) for raw in request.tasks],
        ids=[node.new_id() for _ in range(min(len(request.tasks), BATCH_MAX))],
        batch=new.id,
        agent=agent,
        callback_url=callback_url,
        submitter=caller.token,
    )
    caller.agent_for(new.agent)
    node.tokens.owe(caller, len(made) - 1)
    refused = callback_problem(node, callback_url)
    made, warnings = await offers.checked_batch(
        node, [_sendable(node, one, refused) for one in made]
    )
    good = [one for one in made if isinstance(one, Submission)]
    outcomes: list[object] = []
    if good:
        key = idempotency_key(request.idempotency_key, good[0].agent, request.raw)
        outcomes = await node.submit(Submit(good, key, new, submitter(caller)))
    if len(outcomes) != len(good):  # a repeated batch, some items of which are valid only now
        raise IdempotencyConflict("this Idempotency-Key was already used for a different batch")
    return batch_accepted(*_side_by_side(new.id, made, outcomes), warnings)


def submission_of(node: Node, caller: Caller, task: TaskRequest) -> Submission:
    """Return the submission of a new task for the caller. Raise `InvalidRequest` or `Forbidden`."""
    try:
        made = submission(task, task_id=node.new_id(), agent=caller.agent, submitter=caller.token)
    except InvalidRequest as error:
        raise invalid_task(error) from None
    caller.agent_for(made.agent)
    check_callback(node, made.callback_url)
    return made


def check_callback(node: Node, url: str | None) -> None:
    """Raise `InvalidRequest` if the outbound guard does not allow a callback URL."""
    problem = callback_problem(node, url)
    if problem is not None:
        raise problem


def callback_problem(node: Node, url: str | None) -> InvalidRequest | None:
    """Return why the outbound guard does not allow a URL, or None."""
    if url is None:
        return None
    try:
        node.check_url(url)
    except FairlaneError as error:
        return InvalidRequest(f"invalid task: invalid callbackUrl: {error.message}")
    return None


def submitter(caller: Caller) -> Caller | None:
    """Return the caller whose limits the engine checks; None if it has no limits."""
    return None if caller.agent is None and caller.max_open is None else caller


def idempotency_key(key: str | None, agent: str, raw: bytes) -> IdempotencyKey | None:
    """Return the idempotency key with a digest of its request."""
    if key is None:
        return None
    return IdempotencyKey(agent, key, hashlib.sha256(raw).hexdigest())


def _item(raw: msgspec.Raw) -> Item:
    try:
        return decoding.decode(bytes(raw), TaskRequest)
    except InvalidRequest as error:
        return error


def _sendable(
    node: Node, one: Submission | InvalidRequest, refused: InvalidRequest | None
) -> Submission | InvalidRequest:
    """Return the item, or the error of its callback URL; `refused` is that of the batch."""
    if isinstance(one, InvalidRequest):
        return one
    return refused or callback_problem(node, one.callback_url) or one


def _side_by_side(
    batch: str, made: Sequence[Submission | InvalidRequest], outcomes: Sequence[Any]
) -> tuple[str, list[Task | FairlaneError]]:
    """Return the outcome of every item; a repeated batch returns the ids of the first."""
    left = iter(outcomes)
    found: list[Task | FairlaneError] = []
    for one in made:
        outcome = one if isinstance(one, InvalidRequest) else next(left)
        if isinstance(outcome, Task):
            batch = outcome.batch or batch
        found.append(outcome)
    return batch, found


# -------------------------------------------------------------------- read


@implements(schema.TASKS)
async def list_tasks(node: Node, caller: Caller, request: schema.ListTasks) -> TaskPage:
    search = _search(node, caller, request, oldest=request.sort == "oldest")
    page, cursor = await _page(node, search, request)
    describe = _brief if request.brief else _status
    shown = [describe(view) for view in page]
    pairs = list(zip((view.task for view in page), shown, strict=True))
    await offers.add_notices(node, pairs)
    await add_progress(node, pairs)
    return TaskPage(shown, len(page), None if cursor is None else str(cursor))


async def _page(
    node: Node, search: Search, request: schema.ListTasks
) -> tuple[Page[TaskView], int | None]:
    """Return a page of tasks, and the cursor of the next one."""
    views, cursor = node.views, number(request.cursor)
    if request.offset and cursor is None:
        first, _ = await searching.ids(node, search, limit=request.offset, cursor=None)
        if len(first) < request.offset:
            return Page([], more=False), None
        cursor = first[-1][0]
    if search.failure is None:
        wanted, rest = await searching.next_range(node, search, cursor)
        read = views.search.page
        shape = {"brief": request.brief, "oldest": search.oldest}
        page = await views.read(read, wanted, request.limit, **shape)
    else:
        found, rest = await searching.ids(node, search, limit=request.limit, cursor=cursor)
        seqs = [seq for seq, _ in found]
        page = await views.read(views.search.page_of, seqs, brief=request.brief)
    return page, page[-1].task.seq if page.more else rest


@implements(schema.TASK_STATS)
async def task_stats(node: Node, caller: Caller, _: schema.ShowTaskStats) -> schema.TaskStats:
    counts, _complete = await searching.count(node, _search(node, caller, schema.CountTasks()))
    stats = browseros.task_stats(counts)
    waiting = stats.pop("waiting_dependency") or None
    return schema.TaskStats(**stats, waiting_dependency=waiting)


@implements(schema.COUNT_TASKS)
async def count_tasks(node: Node, caller: Caller, request: schema.CountTasks) -> TaskCount:
    counts, complete = await searching.count(node, _search(node, caller, request))
    return TaskCount(sum(counts.values()), counts, complete)


def _search(
    node: Node,
    caller: Caller,
    request: schema.ListTasks | schema.CountTasks,
    *,
    oldest: bool = False,
) -> Search:
    states = searching.parse_states(",".join(request.states or ()))
    if oldest and request.failure is not None:
        raise InvalidRequest("field 'sort' must be newest when 'failure' is set")
    wanted = searching.filter_of(node, caller, request, states)
    return Search(wanted, oldest, request.failure)


@implements(schema.SHOW)
async def show(node: Node, caller: Caller, request: NamedTask) -> TaskStatus:
    return await _with_details(node, await node.show(request.task_id, caller.agent))


@implements(schema.WHY)
async def why(node: Node, caller: Caller, request: NamedTask) -> TaskWhy:
    found = await node.why(request.task_id, caller.agent)
    return task_why(found.task, found.why)


@implements(schema.WAIT_ONCE)
async def wait_once(node: Node, caller: Caller, request: schema.WaitForTask) -> TaskStatus:
    view = await node.wait(request.task_id, request.timeout_ms / 1000, caller.agent)
    await node.tokens.require(caller)  # the token may have been revoked during the wait
    return await _with_details(node, view)


async def _with_details(node: Node, view: TaskView) -> TaskStatus:
    status = _status(view)
    if view.task.unapproved is not None:
        found = await node.views.read(node.views.approvals_of, view.task.seq)
        status.approval = newest(found)
    if view.task.steps is not None:
        recorded = await node.views.read(node.views.steps_of, view.task.seq)
        status.steps = [step_status(one, view.task) for one in recorded]
    await offers.add_notices(node, [(view.task, status)])
    await add_progress(node, [(view.task, status)])
    return status


def _status(view: TaskView) -> TaskStatus:
    return task_status(view.task, view.body, view.result, view.error, view.log)


def _brief(view: TaskView) -> TaskStatus:
    return brief_status(view.task, view.body, view.error, view.log)


# -------------------------------------------------------------------- change


@implements(schema.CANCEL)
async def cancel(node: Node, caller: Caller, request: NamedTask) -> TaskCancelled:
    task = await node.cancel(request.task_id, caller.agent)
    return TaskCancelled("cancelled", task.id)


@implements(schema.DELETE)
async def delete(node: Node, caller: Caller, request: NamedTask) -> TaskDeleted:
    task = await node.cancel(request.task_id, caller.agent)
    return TaskDeleted(task.id, cancelled=True, state=task.state)


@implements(schema.RETRY)
async def retry(node: Node, caller: Caller, request: schema.QueueAgain) -> TaskRetried:
    task = await node.retry(request.task_id, caller.agent, fresh=request.fresh)
    return task_retried(task)


@implements(schema.RESET)
async def reset(node: Node, caller: Caller, request: schema.QueueAgain) -> TaskReset:
    return task_reset(await node.reset(request.task_id, caller.agent, fresh=request.fresh))


@implements(schema.CANCEL_MANY)
async def cancel_many(node: Node, caller: Caller, request: ManyTasks) -> TasksChanged:
    return await _change_each(node, caller, request, Cancel, _OPEN, newest_first=True)


@implements(schema.RETRY_MANY)
async def retry_many(node: Node, caller: Caller, request: ManyTasks) -> TasksChanged:
    states = (lifecycle.FAILED, lifecycle.CANCELLED)
    return await _change_each(node, caller, request, Retry, states)


@implements(schema.RESET_MANY)
async def reset_many(node: Node, caller: Caller, request: ManyTasks) -> TasksChanged:
    return await _change_each(node, caller, request, Reset, (lifecycle.PARKED,))


@implements(schema.PRUNE)
async def prune(node: Node, _: Caller, request: schema.PruneTasks) -> TasksPruned:
    return TasksPruned(await node.prune(dry_run=request.dry_run), request.dry_run)


async def _change_each(
    node: Node,
    caller: Caller,
    request: ManyTasks,
    verb: Callable[[str], object],
    states: Sequence[str],
    *,
    newest_first: bool = False,
) -> TasksChanged:
    """Change the tasks that match a filter and are in one of `states`: all, or up to the limit.

    Parents go before their children, unless `newest_first`: children are cancelled before their
    parents, whose end would cancel them too.
    """
    named = _states(request)
    allowed = [state for state in states if named is None or state in named]
    wanted = searching.filter_of(node, caller, request, allowed)
    # Failures are found newest first only.
    oldest = not newest_first and request.failure is None
    found: list[tuple[int, str]] = []
    cursor: int | None = None
    if allowed:
        search = Search(wanted, oldest, request.failure)
        found, cursor = await searching.ids(
            node, search, limit=request.limit, cursor=number(request.cursor)
        )
    if not newest_first and not oldest:
        found.reverse()
    ids = [task_id for _, task_id in found]
    changed = 0 if request.dry_run else await node.for_each(verb, ids)
    rest = None if cursor is None else str(cursor)
    shown = (ids[::-1] if newest_first else ids)[:SHOWN_MAX]
    return TasksChanged(len(ids), changed, request.dry_run, shown, rest)


def _states(request: ManyTasks) -> list[str] | None:
    """Return the states of a filter. Raise `InvalidRequest` for an empty filter.

    This prevents changing all tasks by accident.
    """
    given = {
        name: value
        for field, name in _FILTERS.items()
        if (value := getattr(request, field)) is not None
    }
    if not given:
        names = ", ".join(_FILTERS.values())
        raise InvalidRequest(f"the filter is empty; set at least one of {names}")
    words = request.states if isinstance(request.states, str) else ",".join(request.states or ())
    states = searching.parse_states(words)
    for name, value in given.items():
        blank = not value or (isinstance(value, str) and not value.strip())
        if blank or (name == "state" and states is None):
            raise InvalidRequest(
                f"field '{name}' is empty; give a value, or leave it out to match all"
            )
    return states
