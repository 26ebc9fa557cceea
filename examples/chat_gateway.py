"""A chat gateway: each chat is a session whose messages are answered in order, one at a time.

Shows: sessions, messages that arrive together and are merged, messages that reach a run while it
works, limits that are refused politely, stopping a chat.
Run:   python examples/chat_gateway.py    (needs no server)
"""

import asyncio
from typing import Any

from fairlane import Fairlane, SessionQueueFull, Stopped, Work

app = Fairlane("sqlite://:memory:", policy={"sessions": {"cap": 3, "drop": "new"}})


async def answer(work: Work) -> str:
    """Stand in for an agent; replace it with your own."""
    said = [work.params["message"]]
    for _ in range(10):  # its steps; after each one it reads what people have added
        await asyncio.sleep(0.02)
        said += [message["text"] for message in await work.inbox()]
    return f"You said: {', '.join(map(repr, said))}"


async def on_message(chat: str, sender: str, text: str, **how: Any) -> str:
    """Call this for every incoming message, and send the returned text to the chat."""
    try:
        call = {"message": text, "sender": sender, "timeout": 60, **how}
        return str(await app.schedule(session=chat, fn=answer, **call))
    except SessionQueueFull:
        return "Too many messages at once; please wait a moment."
    except Stopped:
        return "Stopped."


async def main() -> None:
    async with app:
        # Ada's two messages arrive within 200 ms and are merged; Bob's chat does not wait for hers.
        replies = await asyncio.gather(
            on_message("chat:1", "ada", "A train to Rome.", debounce_ms=200),
            on_message("chat:1", "ada", "No, to Milan.", debounce_ms=200),
            on_message("chat:2", "bob", "Good morning."),
        )
        print(*replies, sep="\n")

        # The second message steers the run of the first, which answers both.
        first = asyncio.create_task(on_message("chat:4", "ada", "A train to Rome."))
        await asyncio.sleep(0.05)
        print(await on_message("chat:4", "ada", "In the morning.", mode="steer"))
        await first

        flood = [asyncio.create_task(on_message("chat:3", "eve", f"{n}")) for n in range(10)]
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        await app.stop_all("chat:3")
        print(*sorted(await asyncio.gather(*flood)), sep="\n")


asyncio.run(main())
