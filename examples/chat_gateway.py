"""A chat gateway: each chat is a session whose messages are answered in order, one at a time.

Shows: sessions, messages that arrive together and are merged, limits that are refused politely,
stopping a chat.
Run:   python examples/chat_gateway.py    (needs no server)
"""

import asyncio

from fairlane import Fairlane, SessionQueueFull, Stopped, Work

app = Fairlane("sqlite://:memory:", policy={"sessions": {"cap": 3, "drop": "new"}})


async def answer(work: Work) -> str:
    """Stand in for a call of a model; replace it with your own."""
    message: str = work.params["message"]
    await asyncio.sleep(0.05)
    return f"You said: {message!r}"


async def on_message(chat: str, sender: str, text: str, *, debounce_ms: int = 0) -> str:
    """Call this for every incoming message, and send the returned text to the chat."""
    try:
        reply: str = await app.schedule(
            session=chat,
            fn=answer,
            message=text,
            sender=sender,
            debounce_ms=debounce_ms,
            timeout=60,
        )
        return reply
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

        flood = [asyncio.create_task(on_message("chat:3", "eve", f"{n}")) for n in range(10)]
        await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
        await app.stop_all("chat:3")
        print(*sorted(await asyncio.gather(*flood)), sep="\n")


asyncio.run(main())
