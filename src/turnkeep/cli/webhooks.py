"""`turnkeep webhooks`: endpoints that hear of what happens in the workspace, and the deliveries to them."""

from itertools import islice
from typing import Annotated, get_args

import typer

from turnkeep.cli.output import moment, print_json, print_lines, print_table, remark, say
from turnkeep.cli.server_options import AsJson, ServerOptions, asks_a_server
from turnkeep.errors import InvalidRequest
from turnkeep_client.wire import Webhook, WebhookDelivery, WebhookEvent

webhooks = typer.Typer(no_args_is_help=True, help="Let endpoints of yours hear of what happens, and see how that went.")

Named = Annotated[str, typer.Argument(metavar="WEBHOOK", help="webhook_…")]
Address = Annotated[str, typer.Argument(metavar="URL", help="The address that is posted to.")]
HEARS = f"What it hears of: {', '.join(get_args(WebhookEvent))}. Repeat it for several."
Events = Annotated[list[str], typer.Option("--event", help=HEARS)]
Enable = Annotated[bool | None, typer.Option("--enable/--disable", help="While it is disabled, what is pending waits.")]


@webhooks.command("list")
@asks_a_server
def list_webhooks(server: ServerOptions, as_json: AsJson = False) -> None:
    """List the webhooks of the workspace.

    **Example**

    - `turnkeep webhooks list`
    """
    with server.connected() as turnkeep:
        found = turnkeep.webhooks.list()
        if as_json:
            print_lines(found)
            return
        rows = [(one.id, _state(one), one.url, ", ".join(one.events)) for one in found]
    print_table(("id", "state", "url", "events"), rows, nothing="There are no webhooks.")


@webhooks.command()
@asks_a_server
def create(server: ServerOptions, address: Address, events: Events, as_json: AsJson = False) -> None:
    """Make a webhook, and print its secret. It is shown only now.

    **Example**

    - `turnkeep webhooks create https://shop.example.com/turnkeep --event turn.succeeded --event turn.failed`
    """
    with server.connected() as turnkeep:
        made = turnkeep.webhooks.create(address, _known(events))
    if as_json:
        print_json(made)
        return
    say(str(made.secret))
    remark(f"{made.id} hears of {', '.join(made.events)}. The secret above is shown only now.")


@webhooks.command()
@asks_a_server
def show(server: ServerOptions, which: Named, as_json: AsJson = False) -> None:
    """Show a webhook.

    **Example**

    - `turnkeep webhooks show webhook_0192f0c1…`
    """
    with server.connected() as turnkeep:
        _print(turnkeep.webhooks.get(which), as_json=as_json)


@webhooks.command()
@asks_a_server
def update(
    server: ServerOptions,
    which: Named,
    address: Annotated[str | None, typer.Option(help="Another address.")] = None,
    events: Annotated[list[str] | None, typer.Option("--event", help=HEARS)] = None,
    enable: Enable = None,
    as_json: AsJson = False,
) -> None:
    """Change the address or the events of a webhook, or disable it.

    **Examples**

    - `turnkeep webhooks update webhook_0192f0c1… --disable`

    - `turnkeep webhooks update webhook_0192f0c1… --event turn.failed`
    """
    if address is None and not events and enable is None:
        raise InvalidRequest("Say what to change: `turnkeep webhooks update --help` lists it.")
    with server.connected() as turnkeep:
        _print(
            turnkeep.webhooks.update(which, url=address, events=_known(events) or None, is_enabled=enable),
            as_json=as_json,
        )


@webhooks.command()
@asks_a_server
def delete(server: ServerOptions, which: Named, as_json: AsJson = False) -> None:
    """Delete a webhook with its deliveries, those that are pending included.

    **Example**

    - `turnkeep webhooks delete webhook_0192f0c1…`
    """
    with server.connected() as turnkeep:
        turnkeep.webhooks.delete(which)
    print_json({"id": which, "deleted": True}) if as_json else say(f"{which} is deleted.")


@webhooks.command()
@asks_a_server
def deliveries(
    server: ServerOptions,
    which: Named,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List what was sent to a webhook within the last seven days, and what is still to be sent.

    **Examples**

    - `turnkeep webhooks deliveries webhook_0192f0c1…`

    - `turnkeep webhooks deliveries webhook_0192f0c1… --json | jq -r 'select(.status == "failed").id'`
    """
    with server.connected() as turnkeep:
        found = islice(turnkeep.webhooks.deliveries(which), limit)
        if as_json:
            print_lines(found)
            return
        rows = [(one.id, one.type, moment(one.created_at), _progress(one), one.error or "") for one in found]
    print_table(("id", "event", "at", "state", "last error"), rows, nothing="Nothing was sent to it yet.")


@webhooks.command()
@asks_a_server
def redeliver(
    server: ServerOptions,
    which: Named,
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="evt_…")],
    as_json: AsJson = False,
) -> None:
    """Send a delivery again, under the same id.

    **Example**

    - `turnkeep webhooks redeliver webhook_0192f0c1… evt_0192f0c2…`
    """
    with server.connected() as turnkeep:
        again = turnkeep.webhooks.redeliver(which, delivery)
    if as_json:
        print_json(again)
        return
    remark(f"{again.id} is sent in a moment.")


def _known(names: list[str] | None) -> list[WebhookEvent]:
    """Raises InvalidRequest for an event that there is not."""
    known = {str(event): event for event in get_args(WebhookEvent)}
    for name in names or ():
        if name not in known:
            raise InvalidRequest(f"There is no event {name!r}. Events are {', '.join(known)}.")
    return [known[name] for name in names or ()]


def _print(webhook: Webhook, *, as_json: bool) -> None:
    if as_json:
        print_json(webhook)
        return
    say(f"{webhook.id}  {webhook.url}")
    rows = [("state", _state(webhook)), ("events", ", ".join(webhook.events)), ("made", moment(webhook.created_at))]
    if webhook.disabled_reason is not None:
        rows.append(("reason", webhook.disabled_reason))
    print_table(("", ""), rows, nothing="")


def _state(webhook: Webhook) -> str:
    return "enabled" if webhook.is_enabled else "disabled"


def _progress(delivery: WebhookDelivery) -> str:
    tries = f"{delivery.attempts} attempt{'' if delivery.attempts == 1 else 's'}"
    return f"{delivery.status}, {tries}" if delivery.attempts else delivery.status
