"""The loop: one turn, from the question to its answer. Written to be read aloud.

Everything it does goes through `Run`, which knows the turn; whatever stops it (a cancel, a lost lease, a failing
provider, a time limit) arrives as an exception and is settled by `engine.endings`.
"""

from typing import TYPE_CHECKING

from turnkeep_client.wire.blocks import ToolUse

if TYPE_CHECKING:
    from turnkeep.engine.run import Run


async def run_turn(run: "Run") -> None:
    """Ask the model, run the tools it asks for, and so on, until it answers."""
    await run.note_what_is_missing()
    await run.finish_open_calls()
    while True:
        reply = await run.ask_model(may_call=run.rounds_left > 0)
        calls = [block for block in reply.blocks if isinstance(block, ToolUse)]
        if not calls or run.rounds_left == 0:
            await run.answer(reply)
            return
        await run.record_iteration(reply, calls)
        await run.call_tools(calls, malformed=reply.malformed)
